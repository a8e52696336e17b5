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

# Paste the outputs of commands and the file tree into README.md and docs/ anew
docs:
    {{bin}}/python -m benchmarks.readme

validate:
    {{bin}}/meshplan validate

search:
    {{bin}}/python -m benchmarks.search
