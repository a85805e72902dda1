// The same by sharp, which has libvips and its own versions of the encoders.
import { readdirSync, statSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";

const sharp = createRequire(join(process.argv[2], "package.json"))("sharp");
const asked = JSON.parse(process.argv[3]);
sharp.concurrency(1);
sharp.cache(false);

async function make() {
  let picture = sharp(asked.picture);
  for (const { size: [width, height], name, window } of asked.sizes) {
    const { data, info } = await picture.resize(width, height, { fit: "fill" }).raw().toBuffer({ resolveWithObject: true });
    const raw = { raw: { width: info.width, height: info.height, channels: info.channels } };
    for (const [form, options] of Object.entries(asked.encoders.sharp)) {
      const shown = sharp(data, raw);
      if (window) shown.resize(window[2] - window[0], window[3] - window[1], { fit: "cover", position: sharp.strategy.attention });
      await shown[form](options).toFile(join(asked.folder, `${name}.${form}`));
    }
    picture = sharp(data, raw);
  }
}

await make();
await make();
const before = process.cpuUsage();
for (let time = 0; time < asked.times; time++) await make();
const spent = process.cpuUsage(before);
const sizes = Object.fromEntries(readdirSync(asked.folder).sort().map((name) => [name, statSync(join(asked.folder, name)).size]));
console.log(JSON.stringify({ cpu_seconds: (spent.user + spent.system) / 1e6, bytes: sizes }));
