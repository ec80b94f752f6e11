"use strict";
(function () {
  function by(id) { return document.getElementById(id); }
  function hasWords(article, words) {
    article.lowerText = article.lowerText || article.textContent.toLowerCase();
    return words.every(function (word) { return article.lowerText.indexOf(word) >= 0; });
  }
  function update() {
    var words = by("words").value.toLowerCase().split(/\s+/).filter(Boolean), kind = by("kind").value;
    document.querySelectorAll("#tabs input").forEach(function (tab) {
      var section = by(tab.value), matches = 0;
      Array.from(section.children).forEach(function (article) {
        article.hidden = kind !== "*" && !article.querySelector(kind) || words.length && !hasWords(article, words);
        matches += !article.hidden;
      });
      tab.parentNode.querySelector("small").textContent = matches;
      section.hidden = !tab.checked;
      if (tab.checked) { by("count").textContent = matches + " of " + section.children.length + " rows"; }
    });
  }
  ["tabs", "words", "kind"].forEach(function (id) { by(id).addEventListener("input", update); });
  update();
})();
