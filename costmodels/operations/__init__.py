"""The one list of operations of a layer: shapes and bytes."""
