"""torchtune's configurations."""
