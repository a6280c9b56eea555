// How the search ranks: names of the atlas and of the glossary first, a lesson before a page, what tells of the past last.
const FIRST = { system: 40, paper: 30, word: 20 };
var Scorer = {
  score: ([page, , , said, score, , kind]) => {
    const named = kind === "object" && /^(systems|glossary)$/.test(page) ? FIRST[said.split(/\W/)[0]] : 0;
    return score + named + 2 * page.startsWith("tutorials/") - 10 * page.startsWith("CHANGELOG");
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
