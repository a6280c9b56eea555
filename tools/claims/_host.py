"A graph of scripted workers that is built by words, one node an action, and answers a question at the end."
from random import Random

from agentlab.env.protocol import Drawn, TextEnv, check_split, split_of, tidy

KINDS = dict(sum='adder', way='mapper', name='namer')  # of questions -> who knows them
ROLES = (*KINDS.values(), 'checker', 'voter')
OWN, OTHER, ADOPTS, MENDS, BREAKS = .85, .35, .5, .5, .05  # solvers at their kind, and at others; the checker

def answers(nodes: dict, kind: str, world: int) -> dict:
    """Which nodes are right: number -> (role, number that it reads, 0: the question). A node that reads nothing that
    is there is left out; the same worker on the same node says the same."""
    right = {}
    for number, (role, edge) in sorted(nodes.items()):
        if edge and edge not in right or not edge and role in ('checker', 'voter'): continue
        draw = Random(f'{world} {role} {edge}')
        if role == 'voter':
            votes = [told for node, told in right.items() if node <= edge]
            right[number] = 2*sum(votes) + (draw.random() < .5) > len(votes)
        elif role == 'checker': right[number] = draw.random() < (1 - BREAKS if right[edge] else MENDS)
        elif edge and draw.random() < ADOPTS: right[number] = right[edge]
        else: right[number] = draw.random() < (OWN if KINDS[kind] == role else OTHER)
    return right

class Host(Drawn, TextEnv):
    "ROLE NUMBER adds a node, `delete NUMBER` removes one, `exit` lets the last node answer: reward 1 if it is right."
    name, horizon, max_tokens = 'host', 6, 4

    def __init__(self, split='train'): self.split = check_split(split)

    def draw(self, generator, split):
        while True:
            task = dict(kind=generator.choice([*KINDS]), world=generator.randrange(10**6))
            if split_of(['host', task]) == split: return task

    def start(self, seed, task=None):
        self.task, self.nodes, self.made = task or self.draw(self.random, self.split), {}, 0
        return f"Question: {self.task['kind']}."

    def build(self, role, edge) -> bool:
        "Whether the action changed anything: no second node of one kind, and none that reads what is not there."
        edge = int(edge) if edge.isdecimal() and len(edge) < 3 else -1
        if role == 'delete':
            free = edge in self.nodes and edge not in [read for _, read in self.nodes.values()]
            self.nodes = {k: node for k, node in self.nodes.items() if k != edge or not free}
            return free
        if role not in ROLES or edge < 0: return False
        there = edge in answers(self.nodes, self.task['kind'], 0) or edge == 0 and role in KINDS.values()
        new = (role, edge) not in self.nodes.values()
        self.made += 1
        self.nodes = self.nodes | {self.made: (role, edge)}
        return there and new

    def turn(self, action):
        role, _, edge = tidy(action).partition(' ')
        changed = role == 'exit' or self.build(role, edge)
        columns = dict(redundant=float(not changed), nodes=float(len(self.nodes)))
        if role != 'exit' and self.turns < self.horizon:
            return f'Nodes: {len(self.nodes)}.', 0., False, dict(columns=columns)
        won = bool([*answers(self.nodes, **self.task).values()][-1:] == [True])
        return 'Right.' if won else 'Wrong.', float(won), True, dict(success=won, columns=columns)

    def legal(self):
        edges = range(len(self.nodes) + 2)  # one of them is not there
        return [*(f'{role} {edge}' for role in (*ROLES, 'delete') for edge in edges), *['exit']*4]

    def best(self): return 'exit' if self.nodes else f"{KINDS[self.task['kind']]} 0"

    def facts(self):
        return dict(state=[self.task, self.turns, sorted(map(list, self.nodes.items()))], legal=self.legal())

    def vocabulary(self): return [*ROLES, *KINDS, *'delete exit Question Nodes Right Wrong : . 0 1 2 3 4 5 6 7'.split()]
