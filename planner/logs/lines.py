"""Lines as a framework printed them, without what runs around it adds.

    colours     ANSI's, and what else moves a terminal's cursor, wherever they are; also where the
                escape sign is spelt out ("\\u001b[32m", "^[[32m") or was lost ("[32m")
    containers  {"log": "...\\n", "stream": "stderr", "time": "..."} of Docker's json-file driver;
                {"textPayload": "...", ...} of Google Cloud's log
    stamps      2026-03-01T12:00:00.123456789Z [stdout F ]: of `docker logs -t`, of Kubernetes' CRI
    labels      `[rank3]:` and `[default3]:` of torchrun, `3: ` of `srun --label`, `worker-3: ` of
                pdsh, `[pod/worker-3/trainer] ` of `kubectl logs --prefix`, `trainer-3  | ` of
                Docker Compose, `trainer/3 ` of TorchX

Lines of several ranks come late by any number of steps, as each is buffered alone: each rank's are
a log of their own (`by_rank`).

Sources: ECMA-48 (5.4, control sequences); pytorch/pytorch
`torch/distributed/elastic/multiprocessing/tail_log.py`; Slurm's srun(1); moby/moby
`daemon/logger/jsonfilelog`; kubernetes/design-proposals-archive `node/kubelet-cri-logging.md`;
kubernetes/kubectl `pkg/cmd/logs/logs.go` (prefix); docker/compose `cmd/formatter/logs.go`;
pytorch/torchx `torchx/cli/cmd_log.py`.
"""

import json
import re

_ESCAPE = r"(?:\x1b|\u241b|\^\[|\\u001[bB]|\\x1[bB]|\\033)"
COLOUR = re.compile(rf"{_ESCAPE}\[[0-9;:?]{{0,30}}[A-Za-z]|\[\d{{1,3}}(?:;\d{{1,3}}){{0,9}}m")
_STAMP = re.compile(
    r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.\d]{0,10}(?:Z|[+-]\d\d:\d\d) (?:std(?:out|err) [FP] )?",
    re.M,
)
_LABEL = re.compile(
    r"(?:\[(?:rank|default)\d{1,6}\]: ?|\d{1,6}: |[a-zA-Z][\w.-]{0,80}\d(?:: | {1,40}\| )|"
    r"\[pod/[\w.-]{1,253}/[\w.-]{1,63}\] |[a-zA-Z][\w.-]{0,80}/\d{1,6} )"
)
_PAYLOADS = ("log", "textPayload")


def plain(text: str) -> str:
    """The text without colours, containers and stamps."""
    if any(f"\n{each}" in text or text.startswith(each) for each in _OPENINGS):
        text = "\n".join(map(_payload, text.splitlines()))
    return _STAMP.sub("", COLOUR.sub("", text))


_OPENINGS = ('{"log"', '{"textPayload"', '{"insertId"')


def _payload(line: str) -> str:
    """What was printed, of a line of a container's log; any other line itself."""
    if not line.startswith(_OPENINGS):
        return line
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return line
    found = (record.get(name) for name in _PAYLOADS)
    return next((each.rstrip("\n") for each in found if isinstance(each, str)), line)


def by_rank(text: str) -> tuple[str, list[str]]:
    """The text without labels, and the lines of each label, those that have none being a log too;
    no such logs where there are no two, or labels number the lines.
    """
    if not _AT_LINE.search(text):
        return text, []
    found: dict[str, list[str]] = {}
    bare = []
    for line in text.split("\n"):
        label, at = "", 0
        while match := _LABEL.match(line, at):
            label, at = label + match[0].strip(), match.end()
        bare.append(line[at:])
        found.setdefault(label, []).append(bare[-1])
    again = any(label and len(lines) > 1 for label, lines in found.items())
    each = found.values() if again and 1 < len(found) <= MOST_LABELS else ()
    return "\n".join(bare), ["\n".join(lines) for lines in each]


MOST_LABELS = 1024
"""The lines of more are read in their order: a log of each would take too long."""


_AT_LINE = re.compile(rf"^{_LABEL.pattern}", re.M)
