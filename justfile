# Bare `just` = lint + test. Needs the extra `dev` in .venv: just setup

bin := ".venv/bin"

default: lint test

setup:
    python3 -m venv .venv
    {{bin}}/pip install --quiet -e '.[dev]'

lint:
    {{bin}}/ruff check .
    {{bin}}/ruff format --check .
    {{bin}}/mypy

test *arguments:
    {{bin}}/pytest -q {{arguments}}

# What is too long for every change (the table in CONTRIBUTING.md), and coverage. Before a release, and
# before an issue is called done. In pieces: just nightly tests/executor/engine/test_parity.py
nightly *arguments:
    HYPOTHESIS_PROFILE=nightly {{bin}}/pytest -q -m "nightly or not nightly" {{arguments}} --cov=hardware_profiles --cov=costmodels --cov=planner --cov=executor --cov-report=term

# Paste the outputs of commands into README.md and docs/ anew
docs:
    {{bin}}/python -m benchmarks.commands.readme
    {{bin}}/python -m benchmarks.models.page
    {{bin}}/python -m benchmarks.commands.json_keys

# Draw the pages' pictures anew: needs Chromium and the extra `browser`
pictures:
    {{bin}}/python -m benchmarks.commands.pictures

validate:
    {{bin}}/meshplan validate

search:
    {{bin}}/python -m benchmarks.search.cases
