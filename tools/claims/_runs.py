"A run in a folder that goes, which every claim makes."
import tempfile

from agentlab.train import train

def learned(policy, env, recipe, turns=None):
    "Train the policy, in place, until all turns are used up; the rows of the run."
    used = []
    count = lambda row: used.append(row['turns']*row['episodes'])
    enough = lambda: turns is not None and sum(used) >= turns
    with tempfile.TemporaryDirectory() as folder:
        return train(policy, env, recipe, folder, progress=False, on_row=count, should_stop=enough).rows()
