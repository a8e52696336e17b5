"""How long the search takes and what it proved.

    python -m benchmarks.search.cases [PART OF A CASE'S NAME ...]

One line per case: the gap under the event simulation (0 when proved), layouts, rows priced; dropped
by memory and bounded away under the closed form, CP-SAT models; cuts simulated, CPU and wall
seconds. CPU seconds are the figure to compare: wall seconds are the same on an idle core.
"""

import resource
import sys
import time
from typing import NamedTuple

from benchmarks.usage import check_usage
from meshplan.costmodels.training import Training
from meshplan.hardware_profiles.engines import load_engine
from meshplan.hardware_profiles.load import load_cluster
from meshplan.planner.answer.answer import solve
from meshplan.planner.answer.models import read_model
from meshplan.planner.search.result import NoLayoutFits
from meshplan.planner.search.rows.priced_space import Question


class Case(NamedTuple):
    """One question of the issue that asked for the search."""

    model: str
    gpus: int
    cluster: str
    seq_len: int
    global_batch_size: int
    engine: str = "megatron"

    @property
    def name(self) -> str:
        """What the command line selects by."""
        return f"{self.model}/{self.gpus}/{self.cluster}/{self.engine}"


CASES = (
    Case("llama-3.1-8b", 64, "dgx-h100", 8192, 512),
    Case("llama-3.1-70b", 256, "dgx-h100", 8192, 512),
    Case("llama-3.1-70b", 512, "dgx-h100", 8192, 512),
    Case("llama-3.1-405b", 16384, "dgx-h100", 8192, 2048),
    Case("deepseek-v3", 2048, "dgx-h800", 4096, 15360),
    Case("mixtral-8x22b", 128, "dgx-h100", 4096, 1024),
    Case("gpt3-175b", 64, "dgx-a100", 2048, 1536),
    Case("gpt3-175b", 512, "dgx-a100", 2048, 1536),
    Case("gpt3-175b", 4096, "dgx-a100", 2048, 1536),
    Case("llama-3.1-8b", 64, "dgx-h100", 8192, 512, "torchtitan"),
    Case("llama-3.1-405b", 16384, "dgx-h100", 8192, 2048, "native"),
    Case("deepseek-v3", 2048, "dgx-h800", 4096, 15360, "native"),
)


def question_of(case: Case) -> Question:
    """The question that `case` asks."""
    return Question(
        model=read_model(case.model)[1],
        training=Training(seq_len=case.seq_len, global_batch_size=case.global_batch_size),
        gpus=case.gpus,
        cluster=load_cluster(case.cluster),
        engine=load_engine(case.engine),
    )


def measured(case: Case, k: int) -> str:
    """The line of one case."""
    question = question_of(case)
    wall, cpu = time.perf_counter(), time.process_time()
    try:
        result = solve(question, k)
    except NoLayoutFits as error:
        return f"{case.name:44} {error}"
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    best = result.solutions[0]
    return (
        f"{case.name:44} {result.status:8} gap {result.gap:.2%} candidates {result.candidates:7} "
        f"priced {result.priced:6} misfits {result.misfits:7} "
        f"cpsat {result.cpsat_solves:3} simulated {result.simulated:4} cpu {cpu:5.2f} s "
        f"wall {wall:5.2f} s  {best.step_time_s:7.3f} s  {best.layout.label}"
    )


def main() -> None:
    """Run the cases whose name holds one of the arguments; without arguments all of them."""
    wanted = sys.argv[1:]
    for case in CASES:
        if not wanted or any(part in case.name for part in wanted):
            print(measured(case, k=1), flush=True)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory of the process: {peak_mib:.0f} MiB")


if __name__ == "__main__":
    check_usage(str(__doc__))
    main()
