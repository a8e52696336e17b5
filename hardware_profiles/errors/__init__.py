"""How far the cost model is off, learnt from runs that its constants had not seen."""
