"""Write the fixtures of formats whose program did not run here, by their code.

    python tests/foreign/make_others.py [FOLDER]      (default: tests/foreign)

verifiers_results   a line as `save_utils` of verifiers before 0.4 writes it (results.jsonl)
swift               a line as `GRPOTrainer.log` of ms-swift 4.6 gives it to its JsonlWriter (completions.jsonl)
rllm                as `EvalEpisodeStore.write` of rLLM writes an Episode (episodes/episode_000000_add-0.json)
messages            the plain form that anybody can write

Not made here: `inspect/addition.eval` was written by inspect-ai 0.3.285 (a mock model with a tool, 2 samples in 2
epochs), `verifiers/traces.jsonl` by the models and the writer of verifiers 0.4.0 (made-up content: 2 groups of 2
episodes, each with a tool call and a side branch). A run of prime-rl holds the same lines in folders by step.
"""
import json
import sys
from pathlib import Path

ASK, CALL = 'What is 2 + 3?', dict(id='c1', type='function', function=dict(name='add', arguments='{"a": 2, "b": 3}'))
TALK = [dict(role='assistant', content='', tool_calls=[CALL]), dict(role='tool', tool_call_id='c1', content='5'),
    dict(role='assistant', content='It is 5.')]

def results(i, said, reward, cut=False):
    return dict(example_id=i, prompt=[dict(role='user', content=ASK)], completion=said, reward=reward, answer='5',
        info={}, metrics=dict(exact=reward, turns=len(said)//2 + 1.), exact=reward, timing=dict(total_ms=7.),
        is_completed=True, is_truncated=cut, stop_condition='no_tools_called', error=None, tool_defs=[],
        token_usage=dict(input_tokens=30., output_tokens=12.))

def swift(step, rewards):
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call><|im_end|>\n'
    answer = ('<|im_start|>user\n<tool_response>\n5\n</tool_response><|im_end|>\n'
        '<|im_start|>assistant\nIt is {}.<|im_end|>')
    mean = sum(rewards)/len(rewards)
    asked = f'<|im_start|>user\n{ASK}<|im_end|>\n<|im_start|>assistant\n'
    return dict(step=[str(step)]*len(rewards), prompt=[asked]*len(rewards), completion=[
        call + answer.format(5 if r else 6) for r in rewards], accuracy=rewards, advantages=[r - mean for r in rewards])

def rllm(i, rollout, output, correct):
    steps = [dict(id=f's{k}', input=asked, output=said, action=None, reward=0., done=k == 1, metadata=None)
        for k, (asked, said) in enumerate([([dict(role='user', content=ASK)], 'add(2, 3)'), ('5', output)])]
    return dict(id=f'add-{i}:{rollout}', task=dict(id=f'add-{i}', instruction=ASK, metadata=dict(answer='5'),
        dataset_dir='add', sub_dir=None),
        termination_reason='env_done' if correct else 'max_turns_exceeded', is_correct=correct,
        trajectories=[dict(uid=f'u{rollout}', name='agent', task=None, steps=steps, reward=float(correct),
        input=None, output=output, signals=dict(accuracy=float(correct)), metadata=None)],
        artifacts={}, metrics={}, metadata={}, eval_idx=2*i + rollout)

def main(folder):
    def lines(path, *rows):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(''.join(json.dumps(row, ensure_ascii=False) + '\n' for row in rows), encoding='utf-8')
    lines(folder/'verifiers_results/results.jsonl', results(0, TALK, 1.), results(0, TALK[:1], 0., True))
    (folder/'verifiers_results/metadata.json').write_text(json.dumps(
        dict(env_id='add', model='mock', num_examples=1, rollouts_per_example=2, avg_reward=.5), indent=2))
    lines(folder/'swift/completions.jsonl', swift(1, [1., 0.]), swift(2, [1., 1.]))
    for rollout, (output, correct) in enumerate([('5', True), ('6', False)]):
        path = folder/f'rllm/episodes/episode_{rollout:06d}_add-0.json'
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(rllm(0, rollout, output, correct), indent=2))
    (folder/'rllm/meta.json').write_text(json.dumps(dict(dataset='add', model='mock', agent='react'), indent=2) + '\n')
    lines(folder/'messages/runs.jsonl', dict(messages=[dict(role='user', content=ASK), *TALK], reward=1., step=3),
        dict(messages=[dict(role='user', content=ASK), dict(role='assistant', content='6')], reward=0., step=3))

if __name__ == '__main__': main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
