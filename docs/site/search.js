// Search in the language of the page. Material searches in a worker, which gets all sections first, then each query.
(() => {
  const SETUP = 0;
  const QUERY = 2;
  const pageOf = (section) => section.location.split("#")[0];
  const isChinese = (section) => pageOf(section).endsWith(".zh.html");
  const inEnglish = (section) => pageOf(section).replace("README.zh.", "index.zh.").replace(".zh.html", ".html");

  // A Chinese page also finds what is there in English only.
  function inLanguage(sections) {
    const chinese = sections.filter(isChinese);
    if (document.documentElement.lang !== "zh") return sections.filter((section) => !isChinese(section));
    const translated = new Set(chinese.map(inEnglish));
    return sections.filter((section) => !translated.has(pageOf(section)));
  }

  // Chinese has no spaces, so without this only the first word of a clause is found.
  const segmenter = new Intl.Segmenter("zh", { granularity: "word" });
  const inWords = (text, gap) =>
    text.replace(/\p{sc=Han}+/gu, (run) => Array.from(segmenter.segment(run), ({ segment }) => segment).join(gap));
  const segmented = (section) => ({
    ...section,
    title: inWords(section.title, "\u200b"),
    text: inWords(section.text, "\u200b"),
  });

  // To the search, `-9` means pages without a 9. Here it is an exit code.
  const withoutMinus = (query) => query.replace(/(^|\s)-(?=\S)/g, "$1");

  const send = Worker.prototype.postMessage;
  Worker.prototype.postMessage = function ({ type, data }, ...rest) {
    if (type === SETUP) data = { ...data, docs: inLanguage(data.docs).map(segmented) };
    if (type === QUERY) data = inWords(withoutMinus(data), " ");
    return send.call(this, { type, data }, ...rest);
  };
})();
