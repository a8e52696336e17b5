"""Models of many layouts in one setting, of which those alike but for their stages share a rank."""

from collections import OrderedDict
from dataclasses import replace

from meshplan.costmodels.layout import Layout
from meshplan.costmodels.setting import Setting
from meshplan.costmodels.step.step import StepModel


class StepModels:
    """The model of each layout that is asked for; the `most` kinds of rank last asked for are kept.

    Cuts into stages and mixes of recomputation of one row are many, and a layer costs the same in
    each of them.
    """

    def __init__(self, setting: Setting, most: int = 64) -> None:
        self.setting, self.most = setting, most
        self._known: OrderedDict[Layout, StepModel] = OrderedDict()

    def of(self, layout: Layout) -> StepModel:
        """The model of `layout`."""
        row = replace(layout, stages=())
        like = self._known.pop(row, None)
        model = StepModel(self.setting, layout) if like is None else like.with_stages(layout)
        self._known[row] = model
        if len(self._known) > self.most:
            self._known.popitem(last=False)
        return model
