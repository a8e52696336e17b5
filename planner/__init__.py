"""Asks and answers: search space, search with proof, plan files, reports and the command line.

The way of a question through the rooms, each saying more in its own `__init__`:

    cli       the words that are typed, and what is printed
    answer    words to a question, its search to a plan file with reasons
    space     the legal layouts of a question
    search    branch and bound over them, and the proof under the event simulation
    problem   one layout as a problem in integers: layers to stages, and what they recompute
    bounds    what no answer to that problem can beat
    stages    its solvers
    cuts      one layout's cuts into stages under the simulation
    case      one layout priced in full: of a plan file, or of a framework's config
    report    tables, pages, pictures

Beside it: `check` (do configs still fit), `runs` (measured runs, and what they teach), `logs` and
`learn` (a user's own), `sweep` and `whatif` (many questions), `profiles` (hardware), `ui`.
"""
