"""Record what instructions gain when they evolve while the weights are trained: two tasks on CueDoor, each with its
controls, five seeds.

`make results` plays everything (after the other parts) and writes coevolution.json.xz and coevolution.png.
Each run is kept in
runs/coevolution/TASK-MODE-SEED: a second call reads what is finished and goes on where the first was killed.

* `views`: the cue is read two turns before the doors, so an instruction must let the policy look back; weights that can
use the view must be learned with it.
* `facts`: the policy was taught to follow stated rules, of ever new worlds; then comes a world whose rule nobody
states, and the view never looks back.
"""
import sys
from functools import partial
from pathlib import Path

from grid import arguments, cpu_since, found_in, play
from results import CLEAR, headed, interval, keep_picture

RULE = 'd3', 'd1', 'd4', 'd2'  # of the new world in `facts`
TESTS = 'test_greedy', 'test_sampled'
RECIPE = dict(groups=8, group_size=8, minibatches=1, lr=2e-3, max_tokens=4, max_turns=3, test_tasks=0,
    checkpoint_every=20)
WARM = dict(views=dict(steps=60, episodes=16, pool=512), facts=dict(steps=400, episodes=16, pool=6400))
HIDDEN = 32                     # width of the model
READS = dict(views=4, facts=8)  # updates of a generation whose plays are read; facts need many
SHOWN = 'views', 'inspo'        # of its first run the family of instructions is kept: pages show it

def any_told(generator, env):
    "A random view; in half of the games with the rule of the game."
    from agentlab.prompt.instruction import any_view
    return any_view(generator, env).edit(facts=env.rules() if generator.random() < .5 else ())

def worlds(task: str) -> tuple:
    "The world that is learned, and the one of the demonstrations."
    from agentlab.env import CueDoor
    from agentlab.prompt import Instructed
    from agentlab.prompt.instruction import any_view
    if task == 'views': return Instructed(CueDoor()), Instructed(CueDoor(split='demo'), any_view)
    return Instructed(CueDoor(RULE), facts_read=True), Instructed(CueDoor(rule=None, split='demo'), any_told,
        facts_read=True)

def start(task: str, seed: int) -> tuple:
    """The world, and a policy that has watched somebody who waits and then guesses, or follows the rule where one is
    stated."""
    import torch
    from agentlab.policy.core import Policy, word_tokenizer
    from agentlab.policy.tiny import tiny_model
    from agentlab.prompt import warm_views
    torch.set_num_threads(1)
    world, watched = worlds(task)
    tokenizer = word_tokenizer(world.vocabulary())
    return world, warm_views(Policy(tiny_model(len(tokenizer), 128, hidden=HIDDEN, seed=seed), tokenizer,
        name=f'{task}-{seed}'), watched, seed=seed, **WARM[task])

def modes(task: str) -> dict:
    "name -> (updates, one instruction that stays, or a proposer)."
    from agentlab.env import CueDoor
    from agentlab.prompt import Instruction, mined, mutate, reflect, together
    if task == 'views':
        return dict(static=(300, Instruction()), oracle=(300, Instruction(dict(history=2))), random=(600, mutate),
            inspo=(600, reflect))
    told = CueDoor(RULE)
    told.reset(0)
    return dict(static=(100, Instruction()), oracle=(100, Instruction(dict(facts=told.rules()))), inspo=(100, reflect),
        mined=(100, together(mined, reflect)))

def recipe_of(world, steps: int, how, seed: int, recent: int):
    "GRPO with a little entropy bonus, under one instruction or a population that evolves."
    from agentlab import objective
    from agentlab.prompt import Inspo, Instruction, play_instructed
    from agentlab.train import load_recipe
    told = (dict(rollout_args=dict(instructions=how.json())) if isinstance(how, Instruction)
        else dict(memory=partial(Inspo, env=world, propose=how, recent=recent, max_tokens=RECIPE['max_tokens'])))
    return load_recipe('grpo', steps=steps, seed=seed, rollout=play_instructed, objective=objective.entropy_bonus,
        objective_args=dict(coefficient=.01), **RECIPE, **told)

def won(policy, world, instruction, tasks: int) -> dict:
    "Success on held-out tasks under an instruction."
    from agentlab.prompt import play_instructed
    from agentlab.train import evaluate
    return {test: evaluate(policy, world, tasks, test == 'test_greedy', rollout=play_instructed,
        instructions=instruction, max_tokens=RECIPE['max_tokens']) for test in TESTS}

def population_of(folder: Path):
    "The population as the last checkpoint has it; None for a run under one instruction."
    from agentlab.prompt import Instruction, Population
    from agentlab.train import Run
    from agentlab.train.runs import load_checkpoint
    _, tensors, _ = load_checkpoint(Run(folder))
    return Population([Instruction()]).restore(tensors['memory']) if 'memory' in tensors else None

def one_run(task: str, mode: str, seed: int, tasks: int, folder: Path) -> dict:
    "Train (or finish) one run; test old and new weights under the first and the last instruction."
    from agentlab.prompt import Instruction
    from agentlab.train import train
    place = folder/f'{task}-{mode}-{seed}'
    def make(began):
        world, policy = start(task, seed)
        steps, how = modes(task)[mode]
        first = how if isinstance(how, Instruction) else Instruction()
        before = won(policy, world, first, tasks)
        rows = train(policy, world, recipe_of(world, steps, how, seed, READS[task]), place, resume=True,
            progress=False).rows()
        population = population_of(place)
        best = population.members[population.best].instruction if population else first
        found = won(policy, world, best, tasks) | dict(before=before, says=str(best),
            swap=swap(task, seed, policy, world, first, best, tasks))
        return found | learned(rows, population) | cpu_since(began)
    return found_in(place, dict(env=task, recipe=mode, seed=seed, tasks=tasks), make)

def swap(task: str, seed: int, policy, world, first, best, tasks: int) -> dict:
    "Sampled success of {old, new} weights under the {first, last} instruction."
    old = start(task, seed)[1]
    return {f'{weights} weights, {words} words': won(who, world, what, tasks)['test_sampled']
        for weights, who in (('old', old), ('new', policy)) for words, what in (('old', first), ('new', best))}

def learned(rows: list[dict], population) -> dict:
    "What is kept of the rows: success in means of ten updates, and the family where there is one."
    tens = [round(sum(row['success'] for row in rows[i:i + 10])/10, 4) for i in range(0, len(rows) - 9, 10)]
    found = dict(updates=len(rows), success=tens, checked=sum(row.get('checked') or 0 for row in rows))
    if population is None: return found
    return found | dict(population=thinned(population))

def thinned(population) -> dict:
    """The population with every fifth update of its weights, and of its instructions what is not as in the first:
    `Population.read(json.dumps(found | dict(trace=[*zip(*found['trace'])])))` is the population again."""
    import json
    from agentlab.prompt import Instruction
    kept, plain = json.loads(population.json()), Instruction().slots
    for member in kept['members']:
        said = json.loads(member['instruction'])
        slots = {name: value for name, value in said['slots'].items() if value != plain[name]}
        member['instruction'] = dict(slots=slots) | ({} if said['text'] is None else dict(text=said['text']))
    trace = [(step, number, round(w, 3)) for step, number, w in kept['trace'] if step % 5 == 4]
    return kept | dict(trace=[*zip(*trace)])        # columns: a row of three numbers a line would be mostly margin

def summary(results: list[dict]) -> dict:
    "Intervals over the seeds; the median; gains of the weights, of the words, and of both together beyond that."
    found = {test: interval([one[test] for one in results], most=1)
        | dict(median=sorted(one[test] for one in results)[len(results)//2],
        seeds_of=[one[test] for one in results]) for test in TESTS}
    names = list(results[0]['swap'])
    swaps = {name: round(sum(one['swap'][name] for one in results)/len(results), 4) for name in names}
    mean = lambda name: round(sum(one[name] for one in results)/len(results), 1)
    return found | dict(swap=swaps, says=[one['says'] for one in results], curves=[one['success'] for one in results],
        updates=results[0]['updates'], checked=mean('checked'), cpu_seconds=mean('cpu_seconds'),
        most_cpu_seconds=max(one['cpu_seconds'] for one in results))

def record(asked) -> dict:
    plan = [(task, mode, seed, asked.test_tasks, asked.runs) for task in asked.envs for mode in modes(task)
        for seed in asked.seeds if mode in asked.recipes]
    found = play(asked, plan, one_run)
    cells = {task: {mode: summary([found[task, mode, seed] for seed in asked.seeds]) for mode in modes(task)
        if mode in asked.recipes} for task in asked.envs}
    task, mode = SHOWN
    if one := found.get((task, mode, asked.seeds[0])): cells[task][mode]['population'] = one['population']
    return headed(test_tasks=asked.test_tasks, seeds=asked.seeds, episodes=64, cells=cells)

STYLES = dict(static=('#7d8288', 'dot'), oracle=('#7d8288', 'solid'), random=('#0072B2', 'dash'),
    inspo=('#D55E00', 'solid'), mined=('#009E73', 'longdash'))

def draw(record: dict):
    "Success of the training episodes over updates, a line for each seed; one panel for each task."
    from plotly.subplots import make_subplots
    tasks, shown = list(record['cells']), set()
    figure = make_subplots(1, len(tasks), shared_yaxes=True, subplot_titles=tasks, horizontal_spacing=.04)
    for column, task in enumerate(tasks, 1):
        for mode, cell in record['cells'][task].items():
            color, dash = STYLES[mode]
            for curve in cell['curves']:
                figure.add_scatter(x=[10*i + 5 for i in range(len(curve))], y=curve, name=mode, legendgroup=mode,
                    mode='lines', line=dict(color=color, dash=dash, width=1.6),
                    showlegend=mode not in shown, row=1, col=column)
                shown.add(mode)
    figure.update_xaxes(title_text='update', gridcolor='rgba(128,128,128,.2)')
    figure.update_yaxes(tickformat='.0%', range=[0, 1.02], gridcolor='rgba(128,128,128,.2)')
    figure.update_yaxes(title_text='success', col=1)
    figure.update_layout(CLEAR, height=400, margin=dict(l=10, r=16, t=34, b=30))
    return figure

def main() -> int:
    from agentlab.bench import keep
    asked = arguments(__doc__, ['views', 'facts'], ['static', 'oracle', 'random', 'inspo', 'mined'], 'coevolution')
    found = record(asked)
    keep(found, asked.out, 'coevolution', packed=True)
    keep_picture(draw(found), asked.out/'coevolution.png')
    for task, cells in found['cells'].items():
        for mode, cell in cells.items():
            print(f"{task:6} {mode:7} greedy median {cell['test_greedy']['median']:.2f}, mean "
                f"{cell['test_greedy']['mean']:.2f} [{cell['test_greedy']['low'] or 0:.2f}, "
                f"{cell['test_greedy']['high'] or 1:.2f}], {cell['cpu_seconds']} CPU-s a run")
    return 0

if __name__ == '__main__': sys.exit(main())
