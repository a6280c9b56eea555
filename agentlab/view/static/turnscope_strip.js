import {make, put, shape} from './helpers.js';

// Points as the path of a curve, in a box of 1000 by 100.
export const pathOf = line => line.map(([x, y], i) => `${i ? 'L' : 'M'}${x},${y}`).join('');

// Level 1, the run strip: four small plots share one cursor, and the whole is a slider.
export const makeStrip = send => {
  const panels = make('div', {class: 'ts-panels'});
  const node = make(
    'div',
    {
      class: 'ts-strip',
      role: 'slider',
      tabindex: 0,
      'aria-label': 'step of the run',
      title: 'click, or use the arrow keys, to choose a step'
    },
    panels
  );
  let data = null;

  // Choose a step: a click takes the nearest saved one, the keys go from one saved step to the next.
  node.addEventListener('click', event => {
    const plot = event.target.closest('.ts-plot');
    if (!plot || !data) return;
    const box = plot.getBoundingClientRect();
    send('step_near', {
      to: data.low + Math.max(0, Math.min(1, (event.clientX - box.left) / box.width)) * (data.high - data.low)
    });
  });
  node.addEventListener('keydown', event => {
    const by = {
      ArrowLeft: -1,
      ArrowDown: -1,
      ArrowRight: 1,
      ArrowUp: 1,
      PageDown: -10,
      PageUp: 10,
      Home: -1e6,
      End: 1e6
    }[event.key];
    if (by) {
      event.preventDefault();
      event.stopPropagation();
      send('step_by', {by});
    }
  });

  // One plot: curves, or entropy by turn as shades.
  const curve = panel => {
    const svg = shape('svg', {viewBox: '0 -4 1000 108', preserveAspectRatio: 'none', 'aria-hidden': 'true'});
    for (const line of panel.lines) {
      const path = pathOf(line);
      if (line.length > 1)
        svg.append(
          shape('path', {d: `${path}L${line.at(-1)[0]},104L${line[0][0]},104Z`, class: 'ts-area'}),
          shape('path', {d: path, class: 'ts-line'})
        );
    }
    return svg;
  };
  const heat = panel => {
    const svg = shape('svg', {viewBox: '0 0 1000 100', preserveAspectRatio: 'none', 'aria-hidden': 'true'});
    const many = panel.shades.length;
    const high = Math.max(...panel.shades.map(line => line.length));
    for (const [i, line] of panel.shades.entries())
      for (const [t, share] of line.entries()) {
        if (share === null) continue;
        const place = {x: (1000 * i) / many, y: 100 - (100 * (t + 1)) / high};
        const size = {width: 1000 / many + 0.5, height: 100 / high + 0.5};
        svg.append(shape('rect', {...place, ...size, 'fill-opacity': 0.05 + (0.95 * share) / 100, class: 'ts-shade'}));
      }
    return svg;
  };

  // Everything again, when another run is shown; the cursor, when another step is.
  const draw = part => {
    data = part.panels ? part : null;
    panels.replaceChildren(
      ...(part.panels ?? []).map(panel => {
        const drawn = panel.lines
          ? curve(panel)
          : panel.shades
            ? heat(panel)
            : make('span', {class: 'ts-none'}, 'not recorded');
        const single = (panel.lines ?? [])
          .filter(line => line.length === 1)
          .map(([[x, y]]) => make('i', {class: 'ts-dot', style: `left:${x / 10}%;top:${y}%`}));
        const dots =
          panel.lines && part.saved
            ? part.saved.map(x => make('i', {class: 'ts-saved', style: `left:${x / 10}%`}))
            : [];
        return make(
          'div',
          {class: 'ts-panel', 'data-name': panel.name},
          make('div', {class: 'ts-panel-head'}, make('span', {}, panel.label), make('b', {})),
          make(
            'div',
            {class: 'ts-box'},
            make('div', {class: 'ts-axis'}, make('span', {}, panel.high), make('span', {}, panel.low)),
            make('div', {class: 'ts-plot'}, drawn, ...dots, make('i', {class: 'ts-cursor'}), ...single)
          )
        );
      })
    );
    node.hidden = !data;
  };

  const point = head => {
    for (const panel of panels.children) {
      put(panel.querySelector('b'), head.readings?.[panel.dataset.name] ?? '');
      const cursor = panel.querySelector('.ts-cursor');
      cursor.style.left = `${100 * (head.place ?? 0)}%`;
    }
    node.setAttribute('aria-valuemin', data?.low ?? 0);
    node.setAttribute('aria-valuemax', data?.high ?? 0);
    node.setAttribute('aria-valuenow', head.step ?? 0);
    node.setAttribute(
      'aria-valuetext',
      `step ${head.step}, ${(head.at ?? 0) + 1} of ${head.steps} saved; ` +
        Object.entries(head.readings ?? {})
          .map(([name, value]) => `${name.replaceAll('_', ' ')} ${value}`)
          .join(', ')
    );
  };

  return {node, draw, point};
};
