"""Write the verl fixture by hand, in the layout of verl 0.9.1; no verl ran here (its rollouts need a GPU).

The layout is that of `RayPPOTrainer._write_generations` in verl/trainer/ppo/ray_trainer.py: one file
`{global_steps}.jsonl`
with the keys input, output, gts, score, step in this order, then the reward's extra values, `json.dumps(entry,
ensure_ascii=False)`
and a line break. `_log_rollout_data` decodes prompts and responses with skip_special_tokens=True and adds request_id.

    python tests/foreign/make_verl.py [FOLDER]      (default: tests/foreign/verl)

The last line of 2.jsonl is cut in the middle, as a kill leaves it.
"""
import json
import sys
from pathlib import Path

ROWS = {1: [('user\n2 + 3?\nassistant\n', '<tool>add(2, 3)</tool>\nuser\n5\nassistant\nThe sum is 5.', '5', 1.),
    ('user\n2 + 3?\nassistant\n', 'It is 6.', '5', 0.),
    ('user\nПривет, 走る?\nassistant\n', '<script>alert("x")</script>', 'run', 0.),
    ('user\nПривет, 走る?\nassistant\n', 'run \x1b[31mred\x1b[0m \u202eabc', 'run', 1.)],
    2: [('user\n7 + 1?\nassistant\n', '8', '8', 1.), ('user\n7 + 1?\nassistant\n', 'eight, that is 8', '8', 1.),
    ('user\n7 + 1?\nassistant\n', '9', '8', 0.)]}

def main(folder):
    folder.mkdir(parents=True, exist_ok=True)
    for step, rows in ROWS.items():
        lines = [json.dumps(dict(input=a, output=b, gts=c, score=d, step=step, acc=bool(d), request_id=f'{step}-{i}'),
            ensure_ascii=False) + '\n' for i, (a, b, c, d) in enumerate(rows)]
        text = ''.join(lines)
        (folder/f'{step}.jsonl').write_text(text if step == 1 else text[:-60], encoding='utf-8', newline='\n')

if __name__ == '__main__': main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent/'verl')
