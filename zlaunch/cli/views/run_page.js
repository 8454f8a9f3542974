"use strict";
// Draws the page about a run, or about several, from JSON values. Text from a run only ever becomes a text node.

const SVG = "http://www.w3.org/2000/svg", GIB = 2 ** 30;
const COLOURS = [0, 1, 2, 3, 4, 5, 6, 7].map((n) => `var(--c${n})`);
const page = document.getElementById("page");

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}
function shape(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

// Turns what stands between backticks into code, as messages write it.
function prose(text) {
  const parts = String(text).split("`");
  return parts.length % 2 ? element("span", {}, ...parts.map((part, at) => (at % 2 ? element("code", {}, part) : part))) : String(text);
}

// Numbers --------------------------------------------------------------------------------------------------

function number(value) {
  if (typeof value !== "number" || !isFinite(value)) return value === null || value === undefined ? "–" : String(value);
  const size = Math.abs(value);
  if (size >= 1e9 || (size < 1e-3 && size > 0)) return value.toExponential(3).replace(/\.?0+e/, "e");
  if (size >= 1e4) return Math.round(value).toLocaleString("en");
  return String(+value.toPrecision(4));
}
// Rounds as Python does: of two numbers that are equally near, to the even one.
function fixed(value, digits) {
  const text = value.toFixed(digits), isTie = (value * 2 ** (digits + 1)) % 2 === 1;
  return isTie && text.at(-1) % 2 ? (text - 10 ** -digits).toFixed(digits) : text;
}
function twoDigits(value) {
  if (value < 1e-4) return String(+value.toPrecision(2));
  return String(+fixed(value, Math.max(0, 1 - value.toExponential().split("e")[1])));
}
// As `memory`, `signed_percent` and `brief` of zlaunch.units.
function memory(bytes) {
  if (typeof bytes !== "number") return "–";
  const mib = 2 ** 20, size = bytes / GIB;
  if (bytes >= GIB - mib) return `${fixed(size, size < 1000 ? 1 : 0)} GiB`;
  if (bytes >= GIB / 10) return `${fixed(size, 2)} GiB`;
  if (bytes <= 0) return "0 GiB";
  return bytes < mib / 2 ? "<1 MiB" : `${fixed(bytes / mib, 0)} MiB`;
}
function signedPercent(value) {
  const text = fixed(Math.abs(value), 0);
  return +text ? `${value > 0 ? "+" : "-"}${text} %` : "0 %";
}
function brief(seconds) {
  if (0 < seconds && seconds < 0.000095) return `${twoDigits(1000000 * seconds)} µs`;
  if (seconds < 0.095) return `${twoDigits(1000 * seconds)} ms`;
  return `${fixed(seconds, seconds < 0.95 ? 2 : seconds < 9.95 ? 1 : 0)} s`;
}
function clock(seconds) {
  const s = Math.round(seconds), pad = (n) => String(n).padStart(2, "0");
  const [h, m] = [Math.floor(s / 3600), Math.floor(s / 60) % 60];
  return h ? `${h}:${pad(m)}:${pad(s % 60)}` : `${m}:${pad(s % 60)}`;
}
function ticks(low, high, most, isTime, isWhole) {
  const steps = isTime ? [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400] : [];
  const raw = isWhole ? Math.max(1, (high - low) / most) : (high - low) / most, power = 10 ** Math.floor(Math.log10(raw));
  const step = steps.find((one) => one >= raw) || [1, 2, 5, 10].map((n) => n * power).find((one) => one >= raw * 0.999);
  const start = Math.ceil(low / step - 1e-9) * step, found = [];
  for (let number = 0; number <= 2 * most + 2; number++) {
    const at = start + number * step;
    if (!(at <= high + step * 1e-6)) break;
    found.push(+at.toPrecision(12));
  }
  return found;
}
function logTicks(low, high) {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high) + 1; power++)
    for (const n of high / low > 200 ? [1] : [1, 2, 5]) if (n * 10 ** power >= low && n * 10 ** power <= high) found.push(n * 10 ** power);
  return found;
}

// Charts ---------------------------------------------------------------------------------------------------

// A series has x, and low, high and last of each point; NaN where there is none. `lost` are the x of numbers that
// are not finite. Of all points in one column of pixels the lowest and the highest are drawn, so that spikes stay.
function series(name, x, values, options = {}) {
  const made = { name, x: [], low: [], high: [], last: [], lost: [], ...options };
  values.forEach((value, at) => {
    const is = value !== null && typeof value === "object" ? value : { low: value, high: value, last: value, lost: 0 };
    if (is.lost) made.lost.push(x[at]);
    if (typeof is.low !== "number" || x[at] === null) return;
    made.x.push(x[at]); made.low.push(is.low); made.high.push(is.high);
    made.last.push(typeof is.last === "number" ? is.last : is.low);
  });
  return made;
}

function extent(all, marks, fromZero, isLog) {
  let low = Infinity, high = -Infinity;
  for (const one of all) for (let at = 0; at < one.x.length; at++) {
    if (!isLog || one.low[at] > 0) low = Math.min(low, one.low[at]);
    high = Math.max(high, one.high[at]);
  }
  for (const mark of marks) { low = Math.min(low, mark.value); high = Math.max(high, mark.value); }
  if (isLog) return [low / 1.1, high * 1.1];
  if (fromZero) low = Math.min(0, low);
  const room = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
  return [fromZero ? low : low - room, high + room];
}

function path(one, toX, toY) {
  let text = "", at = 0, before = -Infinity;
  while (at < one.x.length) {
    const column = Math.round(toX(one.x[at])), first = at;
    let low = at, high = at;
    for (; at < one.x.length && Math.round(toX(one.x[at])) === column && (at === first || one.x[at] >= one.x[at - 1]); at++) {
      if (one.low[at] < one.low[low]) low = at;
      if (one.high[at] > one.high[high]) high = at;
    }
    const exact = at - first === 1 ? toX(one.x[first]) : column, y = (value) => toY(value).toFixed(1);
    text += `${one.x[first] < before ? "M" : text ? "L" : "M"}${exact.toFixed(1)} ${y(one.last[first])}`;
    if (one.low[low] < one.high[high]) text += `V${y(one.low[low])}V${y(one.high[high])}V${y(one.last[at - 1])}`;
    before = one.x[at - 1];
  }
  return text;
}

// The edge of a band: along its highest values, and back along its lowest.
function outline(one, toX, toY) {
  const there = one.x.map((x, at) => `${toX(x).toFixed(1)} ${toY(one.high[at]).toFixed(1)}`);
  const back = one.x.map((x, at) => `${toX(x).toFixed(1)} ${toY(one.low[at]).toFixed(1)}`).reverse();
  return `M${[...there, ...back].join("L")}Z`;
}

// The median of the values around each of at most 400 points, as one spike or one small batch says little.
const SMOOTH_POINTS = 400, SMOOTH_LEAST = 25;
function smoothed(one, options) {
  const made = series("smoothed", [], [], options), count = one.x.length, half = Math.max(2, Math.round(count / 50));
  if (count < SMOOTH_LEAST) return made;
  const stride = Math.ceil((count - 1) / SMOOTH_POINTS);
  for (let at = 0, before = -1; at > before; before = at, at = Math.min(at + stride, count - 1)) {
    const around = one.last.slice(Math.max(0, at - half), at + half + 1).sort((a, b) => a - b), value = around[around.length >> 1];
    for (const column of [made.low, made.high, made.last]) column.push(value);
    made.x.push(one.x[at]);
  }
  made.label = `smoothed, median of ${2 * half + 1}`;
  return made;
}

function chart(title, unit, xName, all, options = {}) {
  all = all.filter((one) => one.x.length || one.lost.length);
  const { marks = [], fromZero = false, format = number, isTime = false } = options;
  const heading = element("h2", {}, title, " ", element("small", {}, unit));
  const area = element("div", { class: "chart" }), box = element("section", {}, heading, area);
  const positive = all.every((one) => one.low.every((value) => value > 0));
  if (options.canLog && positive) {
    const input = element("input", { type: "checkbox" });
    input.checked = Boolean(logged[title]);
    input.addEventListener("change", () => { logged[title] = input.checked; draw(); });
    box.prepend(element("label", {}, input, " log scale"));
  }
  if (all.length > 1 || marks.length || all.some((one) => one.isBand)) box.append(legend(all.filter((one) => one.label !== null).map((one) => [one.label || one.name, one.colour, one.thin]), marks));
  const lost = all.reduce((sum, one) => sum + one.lost.length, 0);
  if (lost) box.append(element("p", { class: "differs" }, "▼ marks where a value was NaN or infinite"));
  if (options.note) box.append(element("p", { class: "dim" }, options.note));

  function draw() {
    const width = area.clientWidth || 560, height = 230, left = 62, right = 16, top = 10, bottom = 38;
    const isLog = Boolean(logged[title]) && positive, xs = all.flatMap((one) => [one.x, one.lost]);
    let x0 = Infinity, x1 = -Infinity;
    for (const list of xs) for (const x of list) { if (x < x0) x0 = x; if (x > x1) x1 = x; }
    if (x0 === x1) { x0 -= 1; x1 += 1; }
    let [y0, y1] = extent(all, marks, fromZero, isLog);
    if (!(y0 < y1)) [y0, y1] = [0, 1];
    const scale = isLog ? Math.log : (value) => value;
    const toX = (x) => left + ((x - x0) / (x1 - x0)) * (width - left - right);
    const toY = (y) => top + (1 - (scale(Math.max(y, isLog ? y0 : -Infinity)) - scale(y0)) / (scale(y1) - scale(y0))) * (height - top - bottom);
    const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": `${title}, ${unit}` });
    for (const y of isLog ? logTicks(y0, y1) : ticks(y0, y1, 5)) {
      svg.append(shape("line", { x1: left, x2: width - right, y1: toY(y), y2: toY(y), stroke: "var(--grid)" }));
      svg.append(shape("text", { x: left - 6, y: toY(y) + 4, "text-anchor": "end" }, format(y)));
    }
    for (const x of ticks(x0, x1, Math.max(2, Math.floor((width - left) / 80)), isTime, !isTime)) {
      svg.append(shape("line", { x1: toX(x), x2: toX(x), y1: height - bottom, y2: height - bottom + 4, stroke: "var(--dim)" }));
      const text = isTime ? clock(x) : number(x);
      svg.append(shape("text", { x: Math.min(toX(x), width - 4 * text.length), y: height - bottom + 17, "text-anchor": "middle" }, text));
    }
    svg.append(shape("line", { x1: left, x2: width - right, y1: height - bottom, y2: height - bottom, stroke: "var(--dim)" }));
    svg.append(shape("text", { x: (left + width - right) / 2, y: height - 3, "text-anchor": "middle" }, xName));
    for (const one of all) {
      const style = { fill: "none", stroke: one.colour, "stroke-width": one.thin ? 1 : 1.7, opacity: one.thin ? 0.55 : 1, "stroke-linejoin": "round" };
      if (one.isBand) svg.append(shape("path", { d: outline(one, toX, toY), fill: one.colour, opacity: 0.25 }));
      svg.append(shape("path", { d: path(one.isBand ? { ...one, low: one.last, high: one.last } : one, toX, toY), ...style }));
      if (one.x.length < 25) one.x.forEach((x, at) => svg.append(shape("circle", { cx: toX(x), cy: toY(one.last[at]), r: 2.5, fill: one.colour })));
      for (const x of one.lost) svg.append(shape("path", { d: `M${toX(x) - 4} ${top}h8l-4 7z`, fill: "var(--mark)" }));
    }
    for (const mark of marks) {
      svg.append(shape("line", { x1: left, x2: width - right, y1: toY(mark.value), y2: toY(mark.value), stroke: "var(--mark)", "stroke-dasharray": "6 4", "stroke-width": 1.5 }));
    }
    area.replaceChildren(svg);
    hover(area, svg, { all, x0, x1, left, right, width, height, bottom, top, toX, toY, xName, format, isTime, marks });
  }
  draws.push(draw);
  return box;
}

function nearest(xs, x) {
  let low = 0, high = xs.length - 1;
  while (high - low > 1) { const middle = (low + high) >> 1; if (xs[middle] < x) low = middle; else high = middle; }
  return Math.abs(xs[low] - x) <= Math.abs(xs[high] - x) ? low : high;
}

function hover(area, svg, at) {
  const tip = element("div", { class: "tip" }), line = shape("line", { y1: at.top, y2: at.height - at.bottom, stroke: "var(--dim)", "stroke-dasharray": "2 2" });
  const hide = () => { tip.remove(); line.remove(); };
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("pointermove", (event) => {
    const bounds = svg.getBoundingClientRect();
    const wanted = at.x0 + ((event.clientX - bounds.left - at.left) / (at.width - at.left - at.right)) * (at.x1 - at.x0);
    const drawn = at.all.filter((one) => one.x.length);
    if (!drawn.length) return hide();
    const x = drawn.map((one) => one.x[nearest(one.x, wanted)]).reduce((a, b) => (Math.abs(a - wanted) <= Math.abs(b - wanted) ? a : b));
    tip.replaceChildren(element("div", { class: "dim" }, `${at.xName.split(",")[0]} ${at.isTime ? clock(x) : number(x)}`));
    for (const one of drawn) {
      const near = nearest(one.x, x);
      if (Math.abs(one.x[near] - x) > (at.x1 - at.x0) / 50) continue;
      const [low, high] = [one.low[near], one.high[near]];
      const text = low < high ? `${at.format(one.last[near])} (${at.format(low)} to ${at.format(high)})` : at.format(one.last[near]);
      const where = one.x[near] === x || at.isTime ? "" : ` at ${number(one.x[near])}`;
      tip.append(element("div", {}, element("b", { style: `color: ${one.colour}` }, "● "), `${one.name}${where}: ${text}`));
    }
    for (const mark of at.marks) tip.append(element("div", {}, `${mark.name}: ${at.format(mark.value)}`));
    line.setAttribute("x1", at.toX(x)); line.setAttribute("x2", at.toX(x));
    svg.append(line); area.append(tip);
    const place = at.toX(x) + 12 + tip.offsetWidth > at.width ? at.toX(x) - tip.offsetWidth - 12 : at.toX(x) + 12;
    tip.style.left = `${Math.max(0, place)}px`; tip.style.top = `${at.top + 4}px`;
  });
}

function legend(entries, marks = [], isBox = false) {
  const made = element("div", { class: "legend" });
  for (const [name, colour, isThin] of entries) made.append(element("span", {}, element("i", { style: `background: ${colour}`, class: isBox ? "box" : isThin ? "thin" : "" }), name));
  for (const mark of marks) made.append(element("span", {}, element("i", { style: "background: var(--mark)" }), `${mark.name}: ${memory(mark.value * GIB)}`));
  return made;
}

// Sections -------------------------------------------------------------------------------------------------

// A text of the terminal, with the dash and the arrow of a page.
const typeset = (text) => (text === "-" ? "–" : text.replace(" -> ", " → "));
const shownValue = (value) => (value === null || value === undefined ? "–" : typeof value === "string" ? value : JSON.stringify(value));

// On a narrow screen, a table of many columns becomes a list of cells with their names.
function table(titles, rows, numeric = [], names = titles) {
  const side = (at) => (numeric.includes(at) ? { class: "n" } : {});
  const head = element("tr", {}, ...titles.map((title, at) => element("th", side(at), title)));
  const isCell = (cell) => cell instanceof Element && cell.tagName === "TD";
  const body = rows.map((cells) => element("tr", {}, ...cells.map((cell, at) => (isCell(cell) ? cell : element("td", side(at), cell)))));
  const many = titles.length > 5;
  if (many) for (const row of body) [...row.children].forEach((cell, at) => cell.setAttribute("data-name", names[at] || ""));
  return element("div", { class: "wide" }, element("table", many ? { class: "many" } : {}, ...(titles.some(Boolean) ? [head] : []), ...body));
}

// A name that may be broken after each dot, hyphen and underscore.
function keyName(name, tag = "code") {
  const made = element(tag);
  for (const part of name.split(/(?<=[._-])/)) made.append(part, element("wbr"));
  return made;
}

function header(run) {
  const state = element("b", { class: `state ${run.state}` }, run.state);
  const now = run.now ? ` · ${run.now.phase} for ${clock(Date.now() / 1000 - run.now.since)}` : "";
  const bar = run.now && run.steps ? element("progress", { max: run.steps, value: run.step ?? 0, "aria-label": "steps" }) : null;
  return element("header", {}, element("h1", {}, run.id), state, element("span", {}, `${run.headline}${now}`), bar);
}

function tiles(run) {
  const { loss, speed } = run, now = run.now || {};
  const made = [
    ["step", run.step === null ? null : run.steps ? `${run.step} of ${run.steps}` : run.step],
    ["left", typeof now.seconds_left === "number" ? clock(now.seconds_left) : null],
    [`a step, ${run.window}`, typeof now.seconds_per_step === "number" ? brief(now.seconds_per_step) : null],
    [["loss", loss?.remark].filter(Boolean).join(", "), loss ? typeset(loss.ends) : null],
    [`${speed?.unit}, ${speed?.span}`, speed ? speed.text : null],
    ["time", run.seconds === null ? null : clock(run.seconds)],
    ...run.memory.pools.filter((pool) => pool.measured).slice(0, 3).map((pool) => [`${pool.name}, largest rank`, memory(pool.measured)]),
  ];
  const known = made.filter(([, text]) => text !== null);
  if (!known.length) return null;
  return element("section", { class: "tiles" }, ...known.map(([name, text]) => element("div", {}, element("b", {}, text), element("span", {}, name))));
}

function why(run) {
  const rows = [], verdict = run.verdict;
  const add = (name, text) => rows.push([element("td", { class: "label" }, name), element("td", { class: "any" }, text instanceof Element ? text : prose(text))]);
  if (verdict) {
    add(run.is_over ? "cause" : "now", verdict.cause);
    if (verdict.beginning) add("began", verdict.beginning);
    verdict.facts.forEach((fact, at) => add(at ? "" : "evidence", fact));
    verdict.advice.forEach((advice, at) => add(at ? "" : "change", advice));
  }
  (run.stall || []).forEach((line, at) => add(at ? "" : "stall", line));
  run.differences.forEach((text, at) => add(at ? "" : "differs", element("span", { class: "differs" }, prose(text))));
  run.ignored.forEach((text, at) => add(at ? "" : "ignored", element("span", { class: "differs" }, prose(text))));
  run.troubles.filter((text) => !verdict || !verdict.cause.includes(text)).forEach((text, at) => add(at ? "" : "problem", element("span", { class: "differs" }, prose(text))));
  return rows.length ? element("section", {}, element("h2", {}, run.is_over ? "How it ended" : "What it is doing"), table(["", ""], rows)) : null;
}

function stepCharts(run) {
  const past = run.history, boxes = [], one = (name, title, colour) => curve(run, name, title, { colour: COLOURS[colour] });
  const add = (title, unit, all, options) => { if (all.some((each) => each.x.length || each.lost.length)) boxes.push(chart(title, unit, "step", all, options)); };
  add("Loss", "of rank 0", [...withSmoothed(rawLoss(run, { colour: COLOURS[0] })), one("eval_loss", "evaluation", 1)], { canLog: true });
  add("Learning rate", "of the first parameter group", [one("learning_rate", "learning rate", 2)], { fromZero: true });
  add("Throughput", `${past.unit}, all ranks; saving and evaluating included`, withSmoothed(series("throughput", past.step, past.rate, { colour: COLOURS[3] })), { fromZero: true });
  add("Gradient norm", "", withSmoothed(one("grad_norm", "gradient norm", 5)), { canLog: true });
  add("Loss scale", "of fp16", [one("loss_scale", "loss scale", 6)], { canLog: true });
  return boxes;
}

// A number over the steps; the last step may only be in the heartbeat.
function curve(run, name, title, options = {}) {
  const past = run.history, last = past.last, values = past.numbers[name];
  if (!last) return series(title, past.step, values || [], options);
  return series(title, [...past.step, ...last.step], [...(values || past.step.map(() => null)), ...(last.numbers[name] || [null])], options);
}

// The loss of each step, or as it was logged if more of that is known.
function rawLoss(run, options = {}) {
  const [own, logs] = [curve(run, "step_loss", "loss of a step", options), curve(run, "loss", "loss, as logged", options)];
  return own.x.length + own.lost.length >= logs.x.length + logs.lost.length ? own : logs;
}

function withSmoothed(raw) {
  const smooth = smoothed(raw, { colour: raw.colour });
  return smooth.x.length ? [{ ...raw, thin: true }, smooth] : [raw];
}

function memoryCharts(run) {
  const boxes = [], pools = Object.fromEntries(run.memory.pools.map((pool) => [pool.name, pool.predicted]));
  for (const [kind, title, pool] of [["gpu", "GPU memory in use", "GPU, in use"], ["host", "Host memory", "host, resident"]]) {
    const { band, ranks } = run.samples[kind], time = run.samples.time, inGib = (size) => size && size / GIB;
    const all = Object.entries(ranks).map(([name, sizes], at) => {
      const most = sizes.reduce((a, b) => Math.max(a, b || 0), 0);
      return series(name, time, sizes.map(inGib), { colour: COLOURS[at + 1], label: `${name}: ${memory(most)}` });
    });
    if (band.most) {
      const spans = time.map((_, at) => (band.most[at] ? { low: band.least[at] / GIB, high: band.most[at] / GIB, last: band.median[at] / GIB } : null));
      all.unshift(series("median", time, spans, { colour: COLOURS[0], isBand: true, label: `least to most of ${run.num_ranks} ranks, and their median` }));
    }
    if (!all.length) continue;
    const marks = pools[pool] ? [{ name: "predicted peak", value: pools[pool] / GIB }] : [];
    const format = (size) => String(+size.toFixed(3));
    boxes.push(chart(title, kind === "gpu" ? "GiB of each rank's GPU" : "GiB resident, of each rank", "time since the start", all, { marks, fromZero: true, format, isTime: true }));
  }
  return boxes;
}

function memorySection(run) {
  const pools = run.memory.pools.map((pool) => [pool.name.trim(), memory(pool.predicted), memory(pool.measured), pool.percent === null ? pool.remark || "–" : signedPercent(pool.percent)]);
  if (!pools.length) return null;
  const box = element("section", {}, element("h2", {}, "Memory ", element("small", {}, "of the largest rank; + means that the prediction was too high")));
  box.append(table(["", "predicted", "measured", "difference"], pools, [1, 2, 3]));
  run.memory.remarks.forEach((remark) => box.append(element("p", { class: "dim" }, prose(remark))));
  const parts = ["gpu", "reserved", "pageable", "pinned", "shm"].filter((name) => run.memory.phases.some((phase) => phase[name]));
  if (parts.length) {
    const names = { gpu: "GPU tensors", reserved: "GPU reserved", pageable: "host pageable", pinned: "host pinned", shm: "/dev/shm" };
    box.append(element("h2", { style: "margin-top: 12px" }, "Predicted peaks of each phase"));
    box.append(table(["phase", ...parts.map((name) => names[name])], run.memory.phases.map((phase) => [phase.name, ...parts.map((name) => memory(phase[name]))]), parts.map((_, at) => at + 1)));
  }
  return box;
}

const colourOf = (run, name) => (Object.hasOwn(run.phase_colours, name) ? `var(--c${run.phase_colours[name]})` : "var(--line)");
const phaseName = (run, name) => (Object.hasOwn(run.phase_names, name) ? run.phase_names[name] : name);

function phaseSection(run) {
  const spent = Object.entries(run.phases).sort((a, b) => b[1] - a[1]), total = spent.reduce((sum, [, seconds]) => sum + seconds, 0);
  if (!total) return null;
  const colour = Object.fromEntries(spent.map(([name]) => [name, colourOf(run, name)]));
  const area = element("div", { class: "chart" }), box = element("section", { class: "full" }, element("h2", {}, "Phases ", element("small", {}, "share of rank 0's time")), area);
  const share = (seconds) => `${seconds < 100 ? `${seconds.toFixed(1)} s` : clock(seconds)}, ${((100 * seconds) / total).toFixed(1)} %`;
  box.append(legend(spent.map(([name, seconds]) => [`${phaseName(run, name)}: ${share(seconds)}`, colour[name]]), [], true));
  draws.push(() => {
    const width = area.clientWidth || 560, height = 120, bottom = 36, points = run.timeline;
    const end = Math.max(...points.map(([time]) => time), 1), columns = [], room = Math.floor(width / 3);
    let before = Math.max(0, (points[0] || [0, {}])[0] - Object.values((points[0] || [0, {}])[1]).reduce((a, b) => a + b, 0));
    for (const [time, phases] of points) {
      const [first, last] = [before, time].map((when) => Math.min(room - 1, Math.max(0, Math.floor((when / end) * (room - 1)))));
      for (let column = first; column <= last; column++) {
        columns[column] ??= {};
        for (const [name, seconds] of Object.entries(phases)) columns[column][name] = (columns[column][name] || 0) + seconds / (last - first + 1);
      }
      before = time;
    }
    const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": "phases over time" });
    columns.forEach((phases, column) => {
      const sum = Object.values(phases).reduce((a, b) => a + b, 0);
      let y = 4;
      for (const [name] of spent) {
        const tall = ((phases[name] || 0) / (sum || 1)) * (height - bottom - 4);
        if (tall > 0) svg.append(shape("rect", { x: (column * width) / room, y, width: width / room + 0.4, height: tall, fill: colour[name], "shape-rendering": "crispEdges" })), (y += tall);
      }
    });
    for (const x of ticks(0, end, Math.max(2, Math.floor(width / 90)), true)) {
      const at = (x / end) * width;
      svg.append(shape("text", { x: Math.min(width - 14, Math.max(14, at)), y: height - bottom + 16, "text-anchor": "middle" }, clock(x)));
    }
    svg.append(shape("text", { x: width / 2, y: height - 4, "text-anchor": "middle" }, "time since the start"));
    const tip = element("div", { class: "tip" });
    svg.addEventListener("pointerleave", () => tip.remove());
    svg.addEventListener("pointermove", (event) => {
      const x = event.clientX - svg.getBoundingClientRect().left, phases = columns[Math.floor((x / width) * room)];
      if (!phases) return tip.remove();
      const sum = Object.values(phases).reduce((a, b) => a + b, 0);
      tip.replaceChildren(element("div", { class: "dim" }, clock((x / width) * end)), ...Object.entries(phases).sort((a, b) => b[1] - a[1]).slice(0, 5).map(([name, seconds]) => element("div", {}, `${phaseName(run, name)}: ${((100 * seconds) / sum).toFixed(0)} %`)));
      area.append(tip);
      tip.style.left = `${Math.max(0, x + 12 + tip.offsetWidth > width ? x - tip.offsetWidth - 12 : x + 12)}px`; tip.style.top = "4px";
    });
    area.replaceChildren(svg);
  });
  return box;
}

// One bar for each rank: the time of a step by part.
function stepSection(run) {
  const step = run.step_time;
  if (!step) return null;
  const forecast = Object.entries(step.predicted_parts), predicted = forecast.reduce((sum, [, seconds]) => sum + seconds, 0);
  const longest = Math.max(predicted, ...step.ranks.map((rank) => rank.seconds));
  const shown = step.num_ranks > step.ranks.length ? `the ${step.ranks.length} slowest of ${step.num_ranks} ranks` : null;
  const title = element("small", {}, [`${brief(step.seconds)} a step`, shown, step.predicted && `predicted ${step.predicted}`, step.throughput].filter(Boolean).join("; "));
  const box = element("section", { class: "full" }, element("h2", {}, "Time of a step ", title));
  const parts = Object.keys(step.parts);
  const add = (title, shares, total, about = "") => {
    const bar = element("div", { class: "bar", role: "img", "aria-label": title });
    for (const [name, seconds] of shares) bar.append(element("span", { style: `width: ${(100 * seconds) / longest}%; background: ${colourOf(run, name)}`, title: `${phaseName(run, name)}: ${brief(seconds)}${about}` }));
    box.append(element("div", { class: "bars" }, element("span", {}, title), bar, element("span", {}, brief(total))));
  };
  if (forecast.length) add("predicted", forecast, predicted, " are predicted, if nothing overlaps");
  for (const rank of step.ranks) add(`rank ${rank.rank}`, parts.map((name) => [name, rank.parts[name] || 0]), rank.seconds);
  const share = (name) => `${phaseName(run, name)}: ${brief(step.parts[name])}, ${((100 * step.parts[name]) / step.seconds).toFixed(0)} %`;
  box.append(legend(parts.map((name) => [share(name), colourOf(run, name)]), [], true));
  const rows = step.losses.flatMap((loss) => [["slow", loss.cause], ...loss.facts.map((fact, at) => [at ? "" : "evidence", fact]), ...loss.advice.map((advice, at) => [at ? "" : "change", advice])]);
  if (rows.length) box.append(table(["", ""], rows.map(([name, text]) => [element("td", { class: "label" }, name), element("td", { class: "any" }, prose(text))])));
  return box;
}

function planSection(run) {
  const rows = run.plan.map((row) => {
    return [row.name, shownValue(row.planned), element("td", { class: row.differs ? "differs any" : "any" }, shownValue(row.real))];
  });
  return rows.length ? element("section", {}, element("h2", {}, "Planned and real"), table(["", "planned", "real"], rows)) : null;
}

function configSection(run) {
  const rows = run.config.map((row) => [keyName(row.name), element("td", { class: "any value" }, element("code", {}, shownValue(row.value)), row.used === undefined ? null : element("div", { class: row.differs ? "differs" : "dim" }, `DeepSpeed read ${shownValue(row.used)}`)), element("td", { class: "any" }, row.source ? prose(row.source) : "–")]);
  for (const [name, filler] of Object.entries(run.open)) if (!run.config.some((row) => row.name === name)) rows.push([keyName(name), "–", prose(filler)]);
  return rows.length ? element("section", {}, element("h2", {}, "ds_config ", element("small", {}, "and where each value comes from")), table(["key", "value", "from"], rows)) : null;
}

const SHOWN_RANKS = 8;
let showsAllRanks = false;
function rankSection(run) {
  if (!run.ranks.length) return null;
  const more = run.num_ranks > run.ranks.length ? `, ${run.ranks.length} of ${run.num_ranks}` : "";
  const onGpu = run.ranks.some((rank) => rank.gpu);
  const rows = run.ranks.map((rank) => [rank.rank, element("td", { class: "any" }, rank.host ?? "–"), ...(onGpu ? [shownValue(rank.device)] : []), shownValue(rank.step), rank.phase ?? "–", memory(rank.resident), ...(onGpu ? [memory(rank.gpu)] : []), element("td", rank.returncode ? { class: "n differs" } : { class: "n" }, shownValue(rank.returncode))]);
  const titles = ["rank", "host", ...(onGpu ? ["GPU"] : []), "step", "last phase", "host memory", ...(onGpu ? ["GPU reserved"] : []), "exit"];
  const part = (some) => table(titles, some, onGpu ? [5, 6, 7] : [4, 5]), first = rows.slice(0, SHOWN_RANKS), others = rows.slice(SHOWN_RANKS);
  const rest = others.length ? element("details", showsAllRanks ? { open: "" } : {}, element("summary", {}, `${others.length} more`), part(others)) : null;
  if (rest) rest.addEventListener("toggle", () => { showsAllRanks = rest.open; });
  return element("section", {}, element("h2", {}, `Ranks${more}`), part(first), rest);
}

function logSection(run) {
  if (!run.log) return null;
  const { rank, file, lines, traceback } = run.log, box = element("section", {});
  if (traceback) box.append(element("h2", {}, `Traceback of rank ${rank}`), element("pre", {}, traceback));
  if (lines) box.append(element("h2", {}, "End of the log ", element("small", {}, rank === null ? `${file}, of the launcher` : file)), element("pre", {}, lines));
  return box;
}

const factSection = (run) => element("section", {}, element("h2", {}, "Run"), table(["", ""], run.facts.map(([name, text]) => [element("td", { class: "label" }, name), element("td", { class: "any" }, text.includes("`") ? prose(text) : element("span", { class: "code" }, text))])));

const grid = (boxes) => (boxes.length ? element("div", { class: "grid" }, ...boxes) : null);

function showRun(run) {
  document.title = `${run.id}: ${run.state}`;
  const charts = [...stepCharts(run), ...memoryCharts(run)];
  if (charts.length % 2) charts[charts.length - 1].classList.add("full");
  charts.push(...[stepSection(run), phaseSection(run)].filter(Boolean));
  const nothing = charts.length ? null : element("section", {}, "No step was recorded, and no memory over time.");
  const parts = [header(run), live && run.many ? element("p", {}, element("a", { href: "../../" }, "all runs")) : null, why(run), tiles(run), logSection(run), nothing, grid(charts), grid([planSection(run), memorySection(run)].filter(Boolean)), configSection(run), rankSection(run), factSection(run)];
  const footer = element("footer", {}, `zlaunch ${run.zlaunch}, ${new Date(run.written * 1000).toLocaleString()}`);
  page.replaceChildren(...parts.filter(Boolean), footer);
}

// The columns of the overview: title, what a cell shows, and what it is sorted by.
const moment = (seconds) => (seconds === null ? "–" : new Date(seconds * 1000).toLocaleString([], { dateStyle: "short", timeStyle: "short" }));
const OVERVIEW = [
  ["run", (run) => element("td", {}, element("a", { href: `run/${run.name}/` }, run.id), run.cause ? element("div", { class: "dim any" }, prose(run.cause)) : null), (run) => run.id],
  ["state", (run) => element("b", { class: `state ${run.state}` }, run.state), (run) => run.state],
  ["started", (run) => moment(run.started), (run) => run.started],
  ["ZeRO", (run) => typeset(run.zero), (run) => run.zero],
  ["ranks", (run) => shownValue(run.ranks), (run) => run.ranks],
  ["step", (run) => typeset(run.progress), (run) => run.step],
  ["loss", (run) => (Number.isFinite(run.loss) ? fixed(run.loss, 3) : number(run.loss)), (run) => run.loss],
  ["tokens/s", (run) => (run.speed ? element("span", { title: run.speed.span }, run.speed.text, run.state === "running" ? element("div", { class: "dim" }, run.speed.span) : null) : "–"), (run) => run.speed?.per_second],
  ["took", (run) => (run.seconds === null ? "–" : clock(run.seconds)), (run) => run.seconds],
  ["left", (run) => (typeof run.left === "number" ? clock(run.left) : "–"), (run) => run.left],
];
const picked = new Set();
let sorting = null, isDown = false;

function showRuns(data) {
  document.title = "zlaunch runs";
  const pick = (run) => {
    const box = element("input", { type: "checkbox", "aria-label": `compare ${run.id}` });
    box.checked = picked.has(run.name);
    box.addEventListener("change", () => { if (box.checked) picked.add(run.name); else picked.delete(run.name); show(data); });
    return box;
  };
  const runs = [...data.runs], by = OVERVIEW.find(([title]) => title === sorting);
  const below = (a, b) => { const [x, y] = [by[2](a), by[2](b)]; return x === y ? 0 : x === null || x === undefined ? 1 : y === null || y === undefined ? -1 : (x < y) === isDown ? 1 : -1; };
  if (by) runs.sort(below);
  const heads = OVERVIEW.map(([title]) => {
    const button = element("button", { title: "sort by it" }, title === sorting ? `${title} ${isDown ? "▼" : "▲"}` : title);
    button.addEventListener("click", () => { [sorting, isDown] = [title, title === sorting ? !isDown : true]; show(data); });
    return button;
  });
  const rows = runs.map((run) => [...OVERVIEW.map(([, cell]) => cell(run)), pick(run)]);
  const two = [...picked].filter((name) => runs.some((run) => run.name === name));
  const note = two.length === 2 ? element("a", { href: `compare/${two.join("/")}/` }, "compare the two") : "mark two runs to compare them";
  const body = rows.length ? table([...heads, ""], rows, [4, 5, 6, 7, 8, 9], ["", ...OVERVIEW.slice(1).map(([title]) => title), "compare"]) : "no runs yet";
  const compare = rows.length > 1 ? element("p", { class: "dim" }, note) : "";
  page.replaceChildren(element("header", {}, element("h1", {}, "Runs"), element("span", {}, data.directory)), compare, element("section", {}, body));
}

// Two runs: the figures and the curves of both, and what differs.
function showCompared(data) {
  const names = data.compared.map((run) => run.id);
  document.title = names.join(" and ");
  const heads = data.compared.map((run, at) => element("span", {}, element("i", { class: "dot", style: `background: ${COLOURS[at]}` }), keyName(run.id, "span")));
  const cells = (name, texts) => [element("td", { class: "label" }, name), ...texts.map((text) => element("td", { class: "any" }, typeset(text)))];
  const side = (title, rows, none = null) => (rows.length || none ? element("section", {}, element("h2", {}, title), rows.length ? table(["", ...heads.map((head) => head.cloneNode(true))], rows) : none) : null);
  const charts = [];
  const add = (title, unit, curves, options) => { if (curves.some((one) => one.x.length || one.lost.length)) charts.push(chart(title, unit, "step", curves, options)); };
  const both = (make) => data.compared.flatMap((run, at) => make(run, { colour: COLOURS[at] }).map((one) => ({ ...one, label: one.thin ? null : run.id, name: one.thin ? `${run.id}, each step` : run.id })));
  add("Loss", "of rank 0", both((run, options) => withSmoothed(rawLoss(run, options))), { canLog: true });
  add("Evaluation", "loss", both((run, options) => [curve(run, "eval_loss", "", options)]));
  add("Throughput", data.compared[0].history.unit, data.compared[0].history.unit === data.compared[1].history.unit ? both((run, options) => withSmoothed(series("", run.history.step, run.history.rate, options))) : [], { fromZero: true });
  add("Learning rate", "of the first parameter group", both((run, options) => [curve(run, "learning_rate", "", options)]), { fromZero: true });
  add("Gradient norm", "", both((run, options) => withSmoothed(curve(run, "grad_norm", "", options))), { canLog: true });
  if (charts.length % 2) charts[charts.length - 1].classList.add("full");
  const config = data.config.map(([key, ...texts]) => [element("td", { class: "any" }, keyName(key)), ...texts.map((text) => element("td", { class: "any" }, element("code", {}, text)))]);
  const parts = [element("header", {}, element("h1", {}, "Two runs"), element("span", {}, names.join(" and "))), live ? element("p", {}, element("a", { href: "../../../" }, "all runs")) : null, side("Figures", data.figures.map(([name, ...texts]) => cells(name, texts))), grid(charts), side("ds_config, where it differs", config, "both have the same meaning"), side("What else differs", data.facts.map(([name, ...texts]) => cells(name, texts)))];
  page.replaceChildren(...parts.filter(Boolean));
}

// Life -----------------------------------------------------------------------------------------------------

const live = document.documentElement.dataset.live !== undefined, logged = {};
let draws = [], shown = null;

function show(data) {
  draws = [];
  const place = window.scrollY;
  if (data.runs) showRuns(data); else if (data.compared) showCompared(data); else showRun(data);
  for (const draw of draws) draw();
  if (live) window.scrollTo(0, place);
}

// A live page is sent only the steps and samples that it does not have.
function mergeSteps(past, news) {
  if (!news.start) return news;
  const join = (past, more) => Object.fromEntries([...new Set([...Object.keys(past), ...Object.keys(more)])].map((name) => [name, [...(past[name] || Array(news.start).fill(null)), ...(more[name] || Array(news.step.length).fill(null))]]));
  const all = { ...news, numbers: join(past.numbers, news.numbers) };
  for (const name of ["step", "count", "time", "rate"]) all[name] = [...past[name], ...news[name]];
  return all;
}
function merge(old, data) {
  if (old && data.compared) data.compared.forEach((run, at) => { run.history = mergeSteps(old.compared[at].history, run.history); });
  if (!old || !data.history) return data;
  data.history = mergeSteps(old.history, data.history);
  const [before, samples] = [old.samples, data.samples];
  if (samples.start) {
    const columns = (past, more) => Object.fromEntries([...new Set([...Object.keys(past), ...Object.keys(more)])].map((name) => [name, [...(past[name] || Array(samples.start).fill(null)), ...(more[name] || Array(samples.time.length).fill(null))]]));
    const both = (kind) => ({ band: columns(before[kind].band, samples[kind].band), ranks: columns(before[kind].ranks, samples[kind].ranks) });
    data.samples = { ...samples, time: [...before.time, ...samples.time], host: both("host"), gpu: both("gpu") };
  }
  return data;
}

// What the page has: how often its lines were joined, and how many they are.
function seen(data) {
  const count = (history) => `${history.epoch}.${history.step.length}`;
  if (data?.compared) return `?first=${count(data.compared[0].history)}&second=${count(data.compared[1].history)}`;
  return data?.history ? `?steps=${count(data.history)}&samples=${data.samples.epoch}.${data.samples.time.length}` : "";
}

async function poll() {
  let wait = 2000;
  try {
    const answer = document.hidden && shown ? null : await fetch(`data${seen(shown)}`);
    if (answer && !answer.ok) throw new Error(answer.status);
    if (answer) {
      shown = merge(shown, await answer.json());
      if (!document.querySelector("svg:hover")) show(shown);
      if (shown.is_over || shown.compared) wait = 15000;
    }
    document.getElementById("gone")?.remove();
  } catch {
    if (!document.getElementById("gone")) page.prepend(element("section", { id: "gone", class: "differs" }, "`zlaunch runs watch` does not answer: this page is no longer updated."));
    wait = 5000;
  }
  setTimeout(poll, wait);
}

if (live) poll();
else { shown = JSON.parse(document.getElementById("data").textContent); show(shown); }
let resized = null;
window.addEventListener("resize", () => { clearTimeout(resized); resized = setTimeout(() => { for (const draw of draws) draw(); }, 100); });
document.addEventListener("visibilitychange", () => { if (live && !document.hidden && shown) show(shown); });
