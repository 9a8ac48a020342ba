// Guides and classes come before methods and attributes, and these before decisions, changes and measurements.
const RECORDS = /^(adr\/|papers\/|changelog|benchmarks|genindex)/;
const MEMBER = /^#?riskmin\.\w+\.\w+/;
var Scorer = {
  score: ([docname, title, anchor, descr, score, filename, kind]) =>
    score / (RECORDS.test(docname) ? 100 : MEMBER.test(anchor) ? 10 : 1),
  // the defaults of Sphinx
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
