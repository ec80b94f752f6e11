"use strict";
(function () {
  function key(row, column) {
    var text = row.cells[column].getAttribute("data-sort");
    var number = Number(text);
    return text === "" ? null : isNaN(number) ? text.toLowerCase() : number;
  }
  function order(a, b) {
    if (typeof a === "number" && typeof b === "number") { return a - b; }
    return String(a) < String(b) ? -1 : String(a) > String(b) ? 1 : 0;
  }
  function sort(table, column, descending) {
    var body = table.tBodies[0];
    var rows = Array.from(body.rows).map(function (row) { return [key(row, column), row]; });
    rows.sort(function (a, b) {
      if (a[0] === null || b[0] === null) { return (a[0] === null) - (b[0] === null); }
      return descending ? order(b[0], a[0]) : order(a[0], b[0]);
    });
    rows.forEach(function (entry) { body.appendChild(entry[1]); });
  }
  document.querySelectorAll("table.data").forEach(function (table) {
    table.querySelectorAll("thead th").forEach(function (head, column) {
      head.querySelector("button").addEventListener("click", function () {
        var numeric = head.classList.contains("n");
        var before = head.getAttribute("aria-sort");
        var descending = before ? before === "ascending" : numeric;
        table.querySelectorAll("th[aria-sort]").forEach(function (h) { h.removeAttribute("aria-sort"); });
        head.setAttribute("aria-sort", descending ? "descending" : "ascending");
        sort(table, column, descending);
        table.dispatchEvent(new Event("sorted"));
      });
    });
  });
  // A long table shows only its first rows; sorting and filtering apply to all rows.
  function rowText(row) {
    var runs = Array.from(row.querySelectorAll(".run")).map(function (run) { return run.title; });
    return (row.textContent + " " + runs.join(" ")).toLowerCase();
  }
  function refresh(table, words, limit, button) {
    var matches = 0;
    Array.from(table.tBodies[0].rows).forEach(function (row) {
      var text = rowText(row);
      var isMatch = words.every(function (word) { return text.indexOf(word) >= 0; });
      matches += isMatch;
      row.hidden = !isMatch || matches > limit;
    });
    button.hidden = matches <= limit;
    button.textContent = "Show all " + matches + " rows";
  }
  document.querySelectorAll("input[data-filter]").forEach(function (input) {
    var table = document.getElementById(input.getAttribute("data-filter"));
    var limit = Number(table.getAttribute("data-limit"));
    var button = document.createElement("button");
    button.type = "button";
    button.className = "more";
    table.parentNode.after(button);
    function update() { refresh(table, input.value.toLowerCase().split(/\s+/), limit, button); }
    button.addEventListener("click", function () { limit = Infinity; update(); });
    input.addEventListener("input", update);
    table.addEventListener("sorted", update);
    update();
  });


  // Tooltips of points: under the pointer, on a tap, or with the arrow keys within a panel.
  var tip = document.getElementById("tip");
  function nameOf(point) {
    var title = point.querySelector("title");
    if (title) { point.setAttribute("data-name", title.textContent); title.remove(); }
    return point.getAttribute("data-name");
  }
  function showTip(point) {
    var box = point.getBoundingClientRect();
    tip.textContent = nameOf(point);
    tip.hidden = false;
    var left = Math.min(Math.max(8, box.left + box.width / 2 - tip.offsetWidth / 2), document.documentElement.clientWidth - tip.offsetWidth - 8);
    var above = box.top - tip.offsetHeight - 6;
    tip.style.left = left + "px";
    tip.style.top = (above > 4 ? above : box.bottom + 6) + "px";
    document.querySelectorAll(".tip.on").forEach(function (other) { other.classList.remove("on"); });
    point.classList.add("on");
  }
  function hideTip() {
    tip.hidden = true;
    document.querySelectorAll(".tip.on").forEach(function (other) { other.classList.remove("on"); });
  }
  document.querySelectorAll("figure svg").forEach(function (svg) {
    var points = Array.from(svg.querySelectorAll(".tip"));
    var at = -1;
    points.forEach(function (point, i) {
      nameOf(point);
      point.addEventListener("pointerenter", function () { showTip(point); });
      point.addEventListener("pointerleave", function (event) { if (event.pointerType === "mouse") { hideTip(); } });
      point.addEventListener("click", function () { at = i; showTip(point); });
    });
    svg.addEventListener("keydown", function (event) {
      var by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (event.key === "Escape") { hideTip(); }
      if (!by || !points.length) { return; }
      event.preventDefault();
      at = (at + by + points.length + (at < 0 && by < 0 ? 1 : 0)) % points.length;
      showTip(points[at]);
    });
    svg.addEventListener("blur", hideTip);
  });
  document.addEventListener("scroll", hideTip, { passive: true });
  var source = document.getElementById("example-index");
  if (!source) { return; }
  var index = JSON.parse(source.textContent);
  var loaded = {}, failed = {}, shownCount = 0, matching = [];
  var PAGE = 20;
  function by(id) { return document.getElementById(id); }
  function make(tag, text, css) {
    var element = document.createElement(tag);
    if (text !== undefined && text !== null) { element.textContent = text; }
    if (css) { element.className = css; }
    return element;
  }
  function options(picker, entries, selected) {
    picker.replaceChildren();
    entries.forEach(function (entry) {
      var option = make("option", entry[1]);
      option.value = entry[0];
      picker.appendChild(option);
    });
    if (entries.some(function (entry) { return String(entry[0]) === String(selected); })) { picker.value = selected; }
  }
  function letter(run) { return index.marks[run][0]; }
  function runName(run) { return (index.runs.length > 1 ? letter(run) + " " : "") + index.runs[run]; }
  function chip(run) {
    var box = make("span", undefined, "run");
    var colour = make("i");
    colour.style.background = "var(--run-" + index.marks[run][1] + ")";
    box.appendChild(colour);
    box.appendChild(make("b", runName(run)));
    return box;
  }
  function decimal(value, digits) { return value.toFixed(digits).replace("-", "−"); }
  function group() { return index.groups[Number(by("pick-dataset").value)]; }
  function task() { return group().tasks[Number(by("pick-prompt").value)]; }

  // Loads the data of a dataset, from the page or from a script next to it.
  window.t0Examples = function (number, content) { loaded[number] = content; };
  function load(number, done) {
    if (loaded[number]) { done(); return; }
    var embedded = by("report_examples_" + number);
    if (embedded) { loaded[number] = JSON.parse(embedded.textContent); done(); return; }
    var script = document.createElement("script");
    script.src = "report_examples_" + number + ".js";
    script.addEventListener("load", done);
    script.addEventListener("error", function () { failed[number] = true; done(); });
    document.head.appendChild(script);
  }

  function bar(share, css) {
    var box = make("span", undefined, "bar " + (css || ""));
    var inner = make("i");
    inner.style.width = Math.max(0, Math.min(100, share)) + "%";
    box.appendChild(inner);
    return box;
  }
  function row(body, cells, head) {
    var line = body.insertRow();
    cells.forEach(function (cell, i) {
      var element = make(head || i === 0 ? "th" : "td", cell && cell.nodeType ? undefined : cell, i ? "n" : "t");
      if (i === 0 && !head) { element.scope = "row"; }
      if (cell && cell.nodeType) { element.appendChild(cell); }
      line.appendChild(element);
    });
    return line;
  }
  function total(list) { return list.reduce(function (a, b) { return a + b; }, 0); }
  function confusionTable(diagnosis) {
    var table = make("table", undefined, "matrix");
    table.appendChild(make("caption", "Confusion matrix: rows are the right answer, columns the prediction"));
    row(table.createTHead(), [""].concat(diagnosis.answers), true);
    var body = table.createTBody();
    diagnosis.confusion.forEach(function (counts, i) {
      var sum = total(counts) || 1;
      var line = row(body, [diagnosis.answers[i]].concat(counts.map(String)));
      counts.forEach(function (count, j) {
        var cell = line.cells[j + 1];
        cell.style.setProperty("--share", (100 * count / sum).toFixed(0) + "%");
        cell.className = "n shade" + (i === j ? " right" : "");
      });
    });
    return table;
  }
  function distribution(diagnosis) {
    var table = make("table", undefined, "spread");
    table.appendChild(make("caption", "How often each answer is right and predicted, and its metrics"));
    var shares = diagnosis.classes ? ["precision", "recall", "f1"] : [];
    row(table.createTHead(), ["Answer", "right", "predicted"].concat(shares.map(function (name) { return name === "f1" ? "F1" : name; })), true);
    var body = table.createTBody();
    var all = total(diagnosis.confusion.map(total)) || 1;
    diagnosis.answers.forEach(function (answer, i) {
      var right = 100 * total(diagnosis.confusion[i]) / all;
      var predicted = 100 * total(diagnosis.confusion.map(function (counts) { return counts[i]; })) / all;
      var line = row(body, [answer, decimal(right, 1) + " %", decimal(predicted, 1) + " %"].concat(shares.map(function (name) {
        var value = diagnosis.classes[i][name];
        return value === null ? "–" : decimal(value, 1) + " %";
      })));
      line.cells[1].prepend(bar(right, "gold"));
      line.cells[2].prepend(bar(predicted));
    });
    return table;
  }
  function calibrationTable(diagnosis) {
    var table = make("table", undefined, "spread");
    table.appendChild(make("caption", "Calibration: error " + decimal(diagnosis.calibration_error, 1) + " points (" +
      diagnosis.calibration_interval.map(function (end) { return decimal(end, 1); }).join(" to ") + ")"));
    row(table.createTHead(), ["Confidence", "accuracy", "examples"], true);
    var body = table.createTBody();
    diagnosis.calibration.forEach(function (bin) {
      var line = row(body, [decimal(100 * bin[0], 0) + " %", decimal(bin[1], 0) + " %", bin[2].toLocaleString("en")]);
      line.cells[1].prepend(bar(bin[1]));
    });
    return table;
  }
  function diagnose() {
    var box = by("diagnosis");
    box.replaceChildren();
    chosenRuns().forEach(function (run) {
      var diagnosis = task().diagnoses[run];
      if (!diagnosis) { return; }
      var section = make("div", undefined, "diagnosis");
      if (index.runs.length > 1) { var head = make("h3"); head.appendChild(chip(run)); section.appendChild(head); }
      section.appendChild(make("p", "Always the most frequent right answer: " + decimal(diagnosis.majority, 1) + " %. Predicted most often: “" +
        diagnosis.most_predicted_answer + "”, " + decimal(diagnosis.most_predicted, 1) + " %; the predictions’ entropy is " + decimal(diagnosis.entropy_bits, 2) + " bits." +
        (diagnosis.accuracy_without_ties === null ? "" : " Accuracy without ties: " + decimal(diagnosis.accuracy_without_ties, 1) + " %.") + (diagnosis.same_choices ? "" : " The choices differ between examples, so an answer is the position of a choice.")));
      var tables = make("div", undefined, "tables");
      if (diagnosis.confusion) { [confusionTable(diagnosis), distribution(diagnosis)].forEach(function (t) { tables.appendChild(t); }); }
      tables.appendChild(calibrationTable(diagnosis));
      section.appendChild(tables);
      box.appendChild(section);
    });
  }
  function chosenRuns() {
    var first = Number(by("pick-run").value), other = by("pick-other").value;
    return other === "" || Number(other) === first ? [first] : [first, Number(other)];
  }

  function texts() { return loaded[Number(by("pick-dataset").value)].strings; }
  // Converts both kinds of examples to one form: {name, inputs, answers of runs, right of runs, margin}.
  function read(record, kind, strings) {
    var example = { raw: record, right: {}, answer: {} };
    if (kind === "rank") {
      example.id = record.length > 5 ? strings[record[5]] : record[0];
      example.name = "Example " + record[0] + (record.length > 5 ? ", id " + example.id : "");
      example.inputs = record[1] === null ? null : strings[record[1]];
      record[4].forEach(function (answer) {
        example.answer[answer[0]] = answer;
        example.right[answer[0]] = answer[1] === record[2];
      });
      example.words = record[3].map(function (stringIndex) { return strings[stringIndex]; }).join("\n");
    } else {
      example.id = example.name = record[0];
      example.inputs = strings[record[1]];
      var targets = record[2].map(function (stringIndex) { return strings[stringIndex]; });
      record[3].forEach(function (answer) {
        example.answer[answer[0]] = answer;
        example.right[answer[0]] = targets.indexOf(strings[answer[1]].trim()) >= 0;
      });
      example.targets = targets;
      example.words = targets.concat(record[3].map(function (answer) { return strings[answer[1]]; })).join("\n");
    }
    return example;
  }
  function margin(example, run) {
    var answer = example.answer[run];
    return answer ? answer[2][answer[1]] - answer[2][example.raw[2]] : -1;
  }
  var KINDS = {
    all: ["all", function () { return true; }],
    wrong: ["wrong", function (example, runs) { return example.right[runs[0]] === false; }],
    right: ["right", function (example, runs) { return example.right[runs[0]] === true; }],
    gained: ["right, the other wrong", function (example, runs) { return example.right[runs[0]] === true && example.right[runs[1]] === false; }],
    lost: ["wrong, the other right", function (example, runs) { return example.right[runs[0]] === false && example.right[runs[1]] === true; }]
  };
  function choiceTable(example, runs) {
    var strings = texts(), table = make("table"), many = runs.length > 1;
    var heads = ["Choice"];
    runs.forEach(function (run) { heads.push((many ? letter(run) + ": " : "") + "log-likelihood (nats)"); });
    row(table.createTHead(), heads, true);
    var body = table.createTBody();
    example.raw[3].forEach(function (stringIndex, i) {
      var line = body.insertRow();
      var gold = i === example.raw[2];
      var cell = make("td", strings[stringIndex]);
      if (gold) { cell.appendChild(make("small", " ✓ right answer")); line.className = "gold"; }
      line.appendChild(cell);
      runs.forEach(function (run) {
        var answer = example.answer[run];
        var value = make("td", answer ? decimal(answer[2][i], 2) : "–", "n");
        if (answer && answer[1] === i) {
          value.appendChild(make("small", gold ? " ✓ predicted" : " ✗ predicted"));
          value.className = "n chosen" + (gold ? "" : " wrong");
        }
        line.appendChild(value);
      });
    });
    return table;
  }
  function answerTable(example, runs) {
    var strings = texts(), table = make("table"), body = table.createTBody();
    runs.forEach(function (run) {
      if (!example.answer[run]) { return; }
      var line = body.insertRow();
      var head = make("th", (runs.length > 1 ? letter(run) + " " : "") + "predicted");
      head.scope = "row";
      line.appendChild(head);
      line.appendChild(make("td", strings[example.answer[run][1]] || "(nothing)", "text"));
      line.className = example.right[run] ? "gold" : "";
    });
    example.raw[2].forEach(function (stringIndex) {
      var line = body.insertRow();
      var head = make("th", "expected");
      head.scope = "row";
      line.appendChild(head);
      line.appendChild(make("td", strings[stringIndex], "text"));
    });
    return table;
  }
  function card(example, runs) {
    var box = make("article", undefined, "error");
    if (example.name) { box.appendChild(make("h4", example.name)); }
    if (example.inputs !== null) { box.appendChild(make("pre", example.inputs)); }
    box.appendChild(group().kind === "rank" ? choiceTable(example, runs) : answerTable(example, runs));
    return box;
  }
  function more() {
    var list = by("example-list"), runs = chosenRuns();
    var old = list.querySelector(":scope > .more");
    if (old) { old.remove(); }
    matching.slice(shownCount, shownCount + PAGE).forEach(function (example) { list.appendChild(card(example, runs)); });
    shownCount = Math.min(matching.length, shownCount + PAGE);
    if (shownCount < matching.length) {
      var button = make("button", "Show " + Math.min(PAGE, matching.length - shownCount) + " more", "more");
      button.type = "button";
      button.addEventListener("click", function () { var next = shownCount; more(); list.children[next].querySelector("h4, pre").scrollIntoView({ block: "nearest" }); });
      list.appendChild(button);
    }
  }
  function show() {
    var number = Number(by("pick-dataset").value), runs = chosenRuns();
    by("example-list").replaceChildren();
    if (failed[number]) {
      by("example-count").textContent = "report_examples_" + number + ".js cannot be loaded. It must be in the same folder as this page.";
      return;
    }
    if (!loaded[number]) { return; }
    var kind = KINDS[by("pick-kind").value][1];
    var words = by("pick-words").value.toLowerCase().split(/\s+/).filter(Boolean);
    var records = loaded[number].tasks[Number(by("pick-prompt").value)];
    matching = records.map(function (record) { return read(record, group().kind, texts()); }).filter(function (example) {
      if (!runs.some(function (run) { return example.answer[run]; }) || !kind(example, runs)) { return false; }
      var text = words.length ? ((example.name || "") + "\n" + (example.inputs || "") + "\n" + example.words).toLowerCase() : "";
      return words.every(function (word) { return text.indexOf(word) >= 0; });
    });
    if (by("pick-order").value === "worst") {
      matching.sort(function (a, b) { return margin(b, runs[0]) - margin(a, runs[0]); });
    }
    by("example-count").textContent = matching.length.toLocaleString("en") + " of " + records.length.toLocaleString("en") + " examples";
    shownCount = 0;
    more();
  }
  // Returns the matching examples as rows: {column: value}, as `t0 report --examples` writes them.
  function exportedRows() {
    var runs = chosenRuns(), strings = texts(), isRank = group().kind === "rank";
    var same = isRank && matching.every(function (example) { return String(example.raw[3]) === String(matching[0].raw[3]); });
    return matching.map(function (example) {
      var line = { id: example.id, prompt: task().prompt || task().task, text: example.inputs };
      line.target = isRank ? strings[example.raw[3][example.raw[2]]] : example.targets.join(" ||| ");
      runs.forEach(function (run) {
        var answer = example.answer[run], prefix = runs.length > 1 ? letter(run) + " " : "";
        if (!answer) { return; }
        line[prefix + "prediction"] = strings[isRank ? example.raw[3][answer[1]] : answer[1]];
        line[prefix + "correct"] = example.right[run];
        (isRank ? example.raw[3] : []).forEach(function (stringIndex, i) {
          if (!same) { line["choice " + (i + 1)] = strings[stringIndex]; }
          line[prefix + "score " + (same ? strings[stringIndex] : i + 1)] = answer[2][i];
        });
      });
      return line;
    });
  }
  function csvCell(value) {
    var text = value === undefined || value === null ? "" : String(value);
    if (typeof value === "string" && /^[=+\-@\t\n]/.test(text)) { text = "'" + text; }  // not a formula
    return /[",\r\n]/.test(text) ? '"' + text.replace(/"/g, '""') + '"' : text;
  }
  function csvText(rows) {
    var columns = [];
    rows.forEach(function (line) {
      Object.keys(line).forEach(function (name) { if (columns.indexOf(name) < 0) { columns.push(name); } });
    });
    var lines = rows.map(function (line) { return columns.map(function (name) { return csvCell(line[name]); }).join(","); });
    return [columns.map(csvCell).join(",")].concat(lines).join("\n") + "\n";
  }
  by("download-examples").addEventListener("click", function () {
    var link = make("a");
    link.href = URL.createObjectURL(new Blob([csvText(exportedRows())], { type: "text/csv" }));
    link.download = by("pick-kind").value + "_examples.csv";
    link.click();
    URL.revokeObjectURL(link.href);
  });
  function pickRuns() {
    var runs = task().runs.map(function (run) { return [run, runName(run)]; });
    options(by("pick-run"), runs, by("pick-run").value);
    options(by("pick-other"), [["", "no other run"]].concat(runs), by("pick-other").value);
    by("run-label").hidden = by("other-label").hidden = index.runs.length < 2;
    pickKinds();
  }
  function pickKinds() {
    var names = Object.keys(KINDS).filter(function (name) { return chosenRuns().length > 1 || (name !== "gained" && name !== "lost"); });
    options(by("pick-kind"), names.map(function (name) { return [name, KINDS[name][0]]; }), by("pick-kind").value);
    options(by("pick-order"), group().kind === "rank" ? [["rows", "as in the data"], ["worst", "worst first"]] : [["rows", "as in the data"]], by("pick-order").value);
    diagnose();
    load(Number(by("pick-dataset").value), show);
  }
  function pickPrompts() {
    options(by("pick-prompt"), group().tasks.map(function (entry, i) { return [i, entry.prompt || entry.task]; }), 0);
    pickRuns();
  }
  options(by("pick-dataset"), index.groups.map(function (entry, i) { return [i, entry.name]; }), 0);
  by("pick-dataset").addEventListener("change", pickPrompts);
  by("pick-prompt").addEventListener("change", pickRuns);
  by("pick-run").addEventListener("change", pickKinds);
  by("pick-other").addEventListener("change", pickKinds);
  by("pick-kind").addEventListener("change", show);
  by("pick-order").addEventListener("change", show);
  by("pick-words").addEventListener("input", show);
  document.querySelectorAll("button[data-task]").forEach(function (button) {
    button.addEventListener("click", function () {
      index.groups.forEach(function (candidate, i) {
        candidate.tasks.forEach(function (entry, j) {
          if (candidate.kind !== "rank" || entry.task !== button.getAttribute("data-task")) { return; }
          by("pick-dataset").value = i;
          options(by("pick-prompt"), candidate.tasks.map(function (e, k) { return [k, e.prompt || e.task]; }), j);
          by("pick-prompt").value = j;
          pickRuns();
          by("examples").scrollIntoView();
          by("pick-prompt").focus({ preventScroll: true });
        });
      });
    });
  });
  pickPrompts();
})();
