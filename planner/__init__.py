"""Asks and answers: search space, search with proof, plan files, reports and the command line.

The rooms in the order in which a question passes them:

    cli       the words that are typed, and what is printed
    answer    from words to a question, and from its search to a plan file with reasons
    space     the legal layouts of a question
    search    first plans of them, and the best under the event simulation, by branch and bound
    problem   the inner problem of one layout, in integers: layers to stages, what they recompute
    bounds    lower bounds of the inner problem, and of the simulated step
    stages    solvers of the inner problem
    cuts      one layout's cuts into stages under the simulation
    case      one layout priced in full: of a plan file, or of a framework's config
    report    tables, pages, pictures

The other commands:

    check     whether configs and plans still fit, are legal, and did not drift
    runs      measured runs: read, predicted, and what they teach
    logs      training logs of frameworks, read
    learn     constants from a user's own runs, and why a run is slow
    sweep     many questions: sizes, models, clusters
    whatif    one question with hardware or settings changed
    profiles  what is known of GPUs and clusters
    ui        the page of `meshplan ui`

What all of them run on:

    processes how a command uses the machine: its processes and how they end, memory, libraries
"""
