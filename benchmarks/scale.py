"""Scale: thousands of schemas in one process, many clients of one server, and the requests to a model of eight billion parameters.

    python -m benchmarks.scale schemas --maskbench FILE
    python -m benchmarks.scale server                     (in the environment of make test-vllm)
    python -m benchmarks.scale counts

Each writes ``benchmarks/results/scale_*.json``, of which ``docs/scale.md`` tells. The schemas are MaskBench's (see
``benchmarks.maskbench``) and copies of them with other names of members. Linux only: resident memory is read from /proc.
"""

import math
import random
import statistics
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated

import outlines
import psutil
import typer

import outlines_phi
from benchmarks.report import Report

app = typer.Typer(add_completion=False, help=__doc__)


def resident(process: psutil.Process) -> float:
    """Return the megabytes that a process and its children hold in memory."""
    return sum(each.memory_info().rss for each in (process, *process.children(recursive=True))) / 2**20


@app.command()
def server(
    clients: Annotated[int, typer.Option(help="Clients, each of which waits for its answer.")] = 64,
    prompts: Annotated[int, typer.Option(help="Prompts of each format.")] = 16,
    seconds: Annotated[float, typer.Option(help="Seconds for which they ask.")] = 600.0,
    every: Annotated[float, typer.Option(help="Seconds between two looks.")] = 30.0,
) -> None:
    import openai

    from tests.hosts.test_vllm_server import FORMATS, end, start, wait

    warnings.simplefilter("ignore", outlines_phi.errors.FitWarning)
    process, url = start()
    taken, over = list[float](), math.inf

    def ask(number: int) -> None:
        rng, client = random.Random(number), openai.OpenAI(base_url=url, api_key="-")
        model = outlines_phi.wrap(outlines.from_vllm(client, "bundled"))
        while time.monotonic() < over:
            (output_type, prompt), begin = rng.choice(list(FORMATS.values())), time.monotonic()
            model(f"{rng.randrange(prompts)}. {prompt}", output_type, phi=rng.choice(["exact", "local"]))
            taken.append(time.monotonic() - begin)

    try:
        wait(process, url).close()
        title = f"{clients} clients of one server: answers, and resident memory of it and its engine"
        report = Report("scale_server", title, ["seconds", "answers", "p50, s", "p99, s", "resident, MB"])
        looked, begun = psutil.Process(process.pid), time.monotonic()
        over, done = begun + seconds, 0
        with ThreadPoolExecutor(clients) as pool:
            asking = [pool.submit(ask, number) for number in range(clients)]
            report.add(0, 0, "", "", resident(looked))
            while time.monotonic() < over:
                time.sleep(every)
                part, done = sorted(taken[done:]), len(taken)
                quantiles = (part[len(part) // 2], part[len(part) * 99 // 100]) if part else ("", "")
                report.add(round(time.monotonic() - begun), done, *quantiles, resident(looked))
    finally:
        end(process)
    later = [row for row in report.rows if row[0] >= seconds / 3]
    slope = statistics.linear_regression([row[1] for row in later], [row[-1] for row in later]).slope
    report.write(
        clients=clients,
        prompts=prompts,
        **{"answers": len(taken), "KB an answer after a third": round(1024 * slope, 2)},
    )
    for each in asking:
        each.result()  # an error of a client


if __name__ == "__main__":
    app()
