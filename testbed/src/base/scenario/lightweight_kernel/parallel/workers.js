// Workers compute, count in shared memory, and write files that the main thread reads.
const { Worker, isMainThread, workerData } = require("worker_threads");
const { createHash } = require("crypto");
const fs = require("fs");

const WORKERS = 3;

function work({ number, steps, memory }) {
  const counter = new Int32Array(memory);
  let sum = number;
  for (let step = 0; step < steps; step++) {
    sum = (sum * 31 + step) % 1000003;
    if (step % 100 === 0) Atomics.add(counter, 0, 1);
  }
  fs.writeFileSync(`part${number}`, `${sum} `.repeat(20000));
}

async function main(steps) {
  const memory = new SharedArrayBuffer(4);
  const ended = Array.from({ length: WORKERS }, (_, number) => new Promise((resolve, reject) => {
    const worker = new Worker(__filename, { workerData: { number, steps, memory } });
    worker.on("error", reject).on("exit", resolve);
  }));
  console.log(await Promise.all(ended), new Int32Array(memory)[0]);
  for (let number = 0; number < WORKERS; number++) {
    const content = await fs.promises.readFile(`part${number}`);
    console.log(content.length, createHash("sha256").update(content).digest("hex"));
  }
}

if (isMainThread) main(1000 * Number(process.argv[2]));
else work(workerData);
