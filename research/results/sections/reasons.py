"""Why goals are missed, as far as was found: shown on the page beside the verdicts, as Markdown."""

EQUAL_TO_THE_RULE = """
The strongest rule is the exact optimiser whose prices the network moves, or ends within half a per cent of it. Its
cost is flat around the rule's prices, and the network was trained to leave a price alone where bills do not speak
clearly: it is equal, or too near to it to be distinguished, and an equal is not better.
"""
EQUAL_BUT_FOR_THE_DAEMON = """
`learned prices` and the strongest rule are the same exact optimiser with and without a network. The cost is flat
around the rule's prices, and the network, which was trained beside plain settings of the rule and not beside these,
ends a few tenths of a per cent from it. Why the daemon is behind both is said beside its own goals.
"""
LOOSE_OVER_THE_DAY = """
The frontier is that of the mean load. At noon 0.064 jobs/s come, more than all sites together can carry (0.0611): some
have to wait for the evening under any policy, and the frontier does not count that. `greedy`, the strongest rule here,
is nearer to it, as it lets jobs take more than twice as long; `learned prices` pays 20 W for time.
"""
SAVING_HAS_THE_PRODUCT = """
The strongest rule is the optimiser itself with the settings of `learned prices, saving` (for scientific jobs with
those of `learned prices`). `learned prices` is set for short turnarounds, not for the product. What the network does
to the product, held against its own settings without it, has a goal of its own.
"""
FOUR_OF_SIX = """
Four of the six scenarios are asked for. In these two `learned prices` costs as much as `adaptive-price` or some tenths
of a per cent more. That is the rule's and not the network's: `total-cost` without one is at least as far behind, and
neither the devices that it keeps free nor its prices of hosts change it (on other arrivals: `headroom=0` and
`opened_nodes=0,share=0` cost as much).
"""
ASKED_ONCE = """
It is the daemon that misses it. It is asked once, at submission. What runs of a job's name tell it gives it most of
what device types are worth; nodes, later starts and what is worth waiting for, by which `learned prices` saves the
rest, are Slurm's there. It also promises each job 5 %: against the fastest partition with room, and at clocks that
every measured workload bears, where the rules weigh the time of one job against the energy of another. Its network
ends where `daemon/oracle` does.
"""
ENERGY_OF_THE_PAPER = """
The bound leaves what stands under *least possible* to any policy, at any speed. `learned prices, saving` runs nearly
all jobs on one device, which is each one's least energy (95 of 100, counted on other arrivals). What is left above the
bound are hosts: empty slots on awake nodes, idle nodes before they sleep, nodes with fewer devices when the others are
full, and the last hours, in which few jobs keep many nodes awake. `learned prices` is for short turnarounds and pays
with energy. The paper claims both at once.
"""
TIME_OF_THE_PAPER = """
Time is what saving energy costs: one device a job instead of up to four. `learned prices` has the short turnarounds,
`learned prices, saving` the energy and the short makespan. Near the capacity the fast devices are taken, and even
performance first, at 12 % more energy than first come, first served, comes to 25 %.
"""
CHANCE_OF_THE_LONGEST = """
The product is energy times the end of the longest job, which differs by tens of per cent from seed to seed, and the
whole interval has to be on one side: a mean beyond the goal is not enough, nor would it be on other arrivals. The
makespan cannot be shorter than the longest job on its fastest devices under any policy. `learned prices` is short of
the goals in the mean, too (as `learned prices, saving` is of the 32 % at the mixed load): it pays for short
turnarounds with devices that long jobs then lack. `learned prices, saving` has the price of the makespan and room for
it.
"""
WORK_IS_DONE_AGAIN = """
The work that was lost with the devices is done again. Both settings are about as far above undisturbed days as is
asked, and an interval of twelve seeds is wider than what is between.
"""
FORM_MATTERS_LITTLE = """
All forms move prices of the same exact optimiser, and end within about one per cent of each other in energy, whatever
they can see; in the product they differ by the end of the longest job, which is chance. In the paper the network itself
chooses. Where it does so here (the agents above), the hierarchical form has the least cost, after one training of each.
"""
LOOKS_ARE_RARE = """
A look at the cluster is shared by all jobs of ten minutes, so that what is left of a decision is arithmetic that is
the same for every form. The flat form's look is the shorter one: it has no levels to go through.
"""
AGENTS_IMITATE = """
Twenty-four rounds of two episodes are enough for the hierarchical network to come, from nothing, to what imitates
`price:V=20` decides, and not beyond it; the vector and the flat network are still behind. The rules' arithmetic is
exact here, so there is little to be found beyond them: the strongest is within some 10 % of a bound that leaves out
waiting. The least mean of the table is the agents', by no more than chance may make.
"""
NETWORK_MAY_HARM = """
The network moves prices by some per cent, by what jobs' bills say; the makespan is on no bill. What it does to the
end of the longest job is chance, which may go either way, and the interval tells how far.
"""
FEW_SEEDS = """
The mean is within the limit; the interval of these seeds is wider than what is between them.
"""
HOSTS_DRAW_MOST = """
Hosts draw more than their GPUs here, and what is gained is nodes that stay asleep; how many can differs from seed to
seed by more than what is gained.
"""
SAVES_NO_MORE = """
What costs least here is within half a per cent of the least energy that any policy of the table has, so that the same
choice stays the likeliest whatever the weights are.
"""

BEHIND_STATIC_CLOCKS = """
As it is installed, the product keeps its bound for each job and asks 2 % of energy for each per cent of time; static
clocks keep the bound in the mean, with two to three of ten jobs beyond it. Fixed clocks that keep the product's own
rules are in a column of their own; they were chosen by one who measured every kind of work, of which the product knows
nothing as it is installed. Under the mean profile both keep the same bound, and the product finds its clocks by
itself. What is beyond it is where and when jobs start, and of that Slurm leaves a policy little.
Days 1 and 3, 60 % of users with limits of 7 days, and loads of 0.3 and 0.9 were not run, nor were kinds of site that
have no figures under *mean profile*; *trials* and the mean profile with the fair exchange were run in the middle alone.
`auto` and its baseline `oracle` differ by hundredths of a per cent: the network changes next to nothing.
"""
