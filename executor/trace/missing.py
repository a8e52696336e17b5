"""Why a model cannot be traced: the error, importable without torch."""

INSTALL = "pip install 'meshplan[trace]'"


class CannotTrace(ValueError):
    """A model that transformers does not build or run without numbers; one line with the reason."""
