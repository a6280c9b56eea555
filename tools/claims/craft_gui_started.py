"CRAFT-GUI once more, from a policy that wins some games: the first claim's start was lost in three of five seeds."
from dataclasses import replace
from functools import partial

import craft_gui

START = dict(steps=600, pool=2048, noise=.5)

CLAIM = replace(
    craft_gui.CLAIM, key='craft-gui-started', of='craft-gui', row=partial(craft_gui.row, start=START),
    says='From a start that wins some games: short tasks first, longer ones when they are won, is sooner good at the '
    'long ones than all tasks at once.', settings=craft_gui.CLAIM.settings | dict(start=START))
