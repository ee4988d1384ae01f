#!/usr/bin/env bash
# Build both distributions and try them: tests/release.sh [--borrow] [PYTHON...]
# $BIN has `auditwheel`, `build`, `hatchling` and `twine`. Every PYTHON gets a bare environment; with --borrow it takes its dependencies
# from $BIN, and nothing is fetched but what builds. DOCS names an environment with mkdocs, if any; WORK a folder.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bin=${BIN:-$root/.venv-release/bin} work=${WORK:-$(mktemp -d)} borrow=
[ "${1:-}" = --borrow ] && { borrow=yes; shift; }
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$root/pyproject.toml")
fail() { echo "release: $*" >&2; exit 1; }
quiet="--quiet --disable-pip-version-check"

grep -q "^## \[$version\]" "$root/CHANGELOG.md" || fail "CHANGELOG.md has no entry of $version"
rm -rf "$work/dist" && mkdir -p "$work/dist"
for project in "$root" "$root/workbench"; do
  "$bin/python" -m build --no-isolation --outdir "$work/dist" "$project" > "$work/build.log" 2>&1 || { cat "$work/build.log"; fail "the build of $project"; }
done
"$bin/python" -m twine check --strict "$work"/dist/*
mkdir -p "$work/pure" "$work/sdist"
tar -xzf "$work/dist/outlines_phi-$version.tar.gz" -C "$work/sdist"
CC=/bin/false "$bin/python" -m pip wheel $quiet --no-deps --no-build-isolation -w "$work/pure" "$work/sdist/outlines_phi-$version"
compiled=$(echo "$work"/dist/outlines_phi-"$version"-py3-*.whl) pure=$(echo "$work"/pure/*-py3-none-any.whl)
for wheel in "$compiled" "$pure"; do unzip -l "$wheel" | grep outlines_phi/py.typed > /dev/null || fail "no py.typed in $wheel"; done
if command -v cc > /dev/null; then unzip -l "$compiled" | grep 'vocabulary/walk.so' > /dev/null || fail "no kernel in $compiled"; fi
tag=${compiled##*-} tag=${tag%.whl}
if [[ $tag == manylinux* ]]; then "$bin/auditwheel" show "$compiled" | grep "\"$tag\"" > /dev/null || fail "$compiled calls more than its tag says"; fi
unzip -l "$pure" | grep '\.so$' > /dev/null && fail "a library in $pure"
if [ -n "${DOCS:-}" ]; then
  (cd "$work/sdist/outlines_phi-$version" && NO_MKDOCS_2_WARNING=1 "$DOCS/bin/mkdocs" build --quiet) && echo "docs: built from the sdist"
fi

# The code of the README, from a folder without the sources.
mkdir -p "$work/empty" && cd "$work/empty"
awk '/^```python$/ {on = 1; next} /^```$/ {on = 0} on' "$root/README.md" > readme.py
export OMP_NUM_THREADS=1 OUTLINES_PHI_CACHE= HF_HUB_OFFLINE=1
unset PYTHONPATH
# Every module is imported; one of an extra may lack what the extra installs, and nothing else.
cat > modules.py <<'END'
import importlib, pkgutil, outlines_phi
from outlines_phi.vocabulary.kernel import LIBRARY, library

lacking = {}
for module in pkgutil.walk_packages(outlines_phi.__path__, "outlines_phi.", onerror=lambda name: None):
    if module.name.endswith(f".{LIBRARY.stem}"):  # called by ctypes, and no module
        continue
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        if error.name.startswith("outlines"):
            raise
        lacking.setdefault(error.name.split(".")[0], []).append(module.name)
print(outlines_phi.__file__, bool(library()), "without", *sorted(lacking))
END
for python in "$@"; do
  venv=$work/venv-$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  [ -d "$venv" ] || "$python" -m venv "$venv"
  if [ -n "$borrow" ]; then
    "$bin/python" -c 'import site; print(site.getsitepackages()[0])' > "$("$venv/bin/python" -c 'import site; print(site.getsitepackages()[0])')/borrowed.pth"
  else
    "$venv/bin/pip" install $quiet "$work"/dist/*.whl
  fi
  for wheel in "$pure" "$compiled"; do
    "$venv/bin/pip" install $quiet --no-deps --force-reinstall "$wheel" "$work"/dist/outlines_phi_workbench-*.whl
    "$venv/bin/outlines-phi" --version | grep -x "outlines-phi $version" > /dev/null || fail "--version in $venv"
    "$venv/bin/outlines-phi" verify --help > /dev/null || fail "no command of the workbench in $venv"
    kernel=$(unzip -l "$wheel" | grep 'walk\.so' > /dev/null && echo True || echo False)
    "$venv/bin/python" modules.py > modules.log 2> errors.log || { cat errors.log; fail "a module of $wheel in $venv"; }
    grep "^$venv.* $kernel without" modules.log || fail "a kernel where there is none, or none, of $wheel in $venv"
    [ ! -s errors.log ] || { cat errors.log; fail "$wheel is not silent in $venv"; }
    "$venv/bin/python" readme.py || fail "the README's code on $wheel in $venv"
  done
  echo "$("$venv/bin/python" -V): both wheels, every module, the README's code"
done
