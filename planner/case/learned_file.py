"""The file that `meshplan learn` writes: in, out, and what a plan takes from it."""

from pathlib import Path

from pydantic import ValidationError

from meshplan.hardware_profiles.engine_schema import Engine
from meshplan.hardware_profiles.errors.asked import FARTHER, Asked
from meshplan.hardware_profiles.errors.intervals import Interval
from meshplan.hardware_profiles.files.profile_file import first_fault
from meshplan.hardware_profiles.learned import Learned
from meshplan.hardware_profiles.schema import Cluster
from meshplan.hardware_profiles.tunings import Tuning
from meshplan.planner.case.config_files import text_of
from meshplan.planner.case.plan_file import SCALAR_ERRORS
from meshplan.planner.case.reading import UnreadableConfig
from meshplan.planner.case.run_facts import Facts, differing
from meshplan.planner.case.settings import one_line
from meshplan.planner.text_files import write_text

LEARNT_RANGE = "the range is meant for 8 of 10 runs; of left-out runs it held 37% to 100%"
"""By published suites, each with two of its runs learnt from (docs/learn.md, the table's ends)."""


class UnreadableLearned(ValueError):
    """A file of learnt constants that cannot be used; one line with the place and the fix."""


def read_learned(path: Path) -> Learned:
    """The file at `path`; raises `UnreadableLearned`."""
    from meshplan.planner.case.yaml_text import YAMLError, parsed

    try:
        learned = Learned.model_validate(parsed(text_of(path)))
        Tuning.model_validate(learned.values())
    except ValidationError as error:
        fault = first_fault(error, "learned")
        raise UnreadableLearned(f"{path}: {fault}; `meshplan learn` writes such files") from None
    except UnreadableConfig as error:
        raise UnreadableLearned(f"{path}: {one_line(error)}") from None
    except (OSError, YAMLError, *SCALAR_ERRORS) as error:
        raise UnreadableLearned(f"{path}: cannot be read: {one_line(error)}") from None
    return learned


def write_learned(learned: Learned, path: Path) -> None:
    """Write the file as a whole; raises `CannotWrite`."""
    from meshplan.planner.case.yaml_text import written

    write_text(path, written(learned.model_dump(mode="json")))


def with_learned(engine: Engine, cluster: Cluster, path: Path) -> Engine:
    """`engine` with the constants of the file; raises `UnreadableLearned` for another's."""
    learned = read_learned(path)
    asked = {"engine": engine.name, "gpu": cluster.gpu.name}
    for name, value in asked.items():
        if getattr(learned, name) != value:
            raise UnreadableLearned(
                f"{path}: learnt of {name} {getattr(learned, name)}, but the question is of "
                f"{value}; learn from runs of that, or leave --learned out"
            )
    return engine.model_copy(update={"learned": learned})


def learned_interval(
    learned: Learned, asked: Asked, usual: Interval, facts: Facts | None = None
) -> Interval:
    """Around a step time, the wider the more `facts` differ from the nearest run's. What no run
    that is learnt from covers (precision, kind of model, `FARTHER` times the GPUs) is not known
    better than without the runs.
    """
    taught = [run for run in learned.runs if run.believed]
    covered = {
        asked.precision: any(run.precision == asked.precision for run in taught),
        f"{asked.model} models": any(run.model == asked.model for run in taught),
        f"{asked.gpus:,} GPUs": any(asked.gpus <= FARTHER * run.gpus for run in taught),
    }
    outside = tuple(name for name, found in covered.items() if not found)
    far = [differing(facts, run.facts) for run in taught if run.facts] if facts else []
    high = learned.factor_at(min(far, default=None))
    low = 1 / high
    if outside:
        low, high = min(low, usual.low), max(high, usual.high)
    return Interval(low, high, len(taught), outside)
