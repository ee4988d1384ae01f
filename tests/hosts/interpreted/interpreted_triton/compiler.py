"""A compiler that is never asked to compile."""

from typing import Any

from triton.backends.compiler import BaseBackend


class Compiler(BaseBackend):
    @staticmethod
    def supports_target(target: Any) -> bool:
        return target.backend == "cpu"

    def hash(self) -> str:
        return "interpreted"

    def parse_options(self, options: Any) -> Any:
        return options

    def add_stages(self, stages: Any, options: Any, *given: Any) -> None:
        raise AssertionError("kernels are interpreted here, not compiled")

    def load_dialects(self, context: Any) -> None:
        pass

    def get_module_map(self) -> dict[str, Any]:
        return {}
