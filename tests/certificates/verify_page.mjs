// Runs the verifier of docs/verify.html: node verify_page.mjs PAGE PROOF DATA [PROOF DATA ...]; one line per pair.
import { openAsBlob, readFileSync } from "node:fs";
import vm from "node:vm";

const [page, ...files] = process.argv.slice(2);
const script = readFileSync(page, "utf8").match(/<script id="verifier">([^]*?)<\/script>/)[1];
const context = vm.createContext({ DataView, ArrayBuffer, DecompressionStream, Response, console });
const { verify } = vm.runInContext(`${script}; ({ verify })`, context);
for (let i = 0; i < files.length; i += 2) {
  try {
    const { value, gap } = await verify(await openAsBlob(files[i]), files[i + 1], readFileSync(files[i + 1], "utf8"));
    console.log(JSON.stringify({ proved: true, value, gap }));
  } catch (error) {
    console.log(JSON.stringify({ proved: false, reason: String(error.message) }));
  }
}
