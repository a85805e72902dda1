// Variants of many pictures by sharp, each in the formats it is asked for, by one resize from the file.
import { createRequire } from "node:module";

const sharp = createRequire(`${process.argv[2]}/package.json`)("sharp");
const asked = JSON.parse(process.argv[3]);
const made = [];

for (const { picture, boxes } of asked.pictures) {
  for (const [width, height] of boxes) {
    const resized = sharp(picture).autoOrient().resize(width, height, { fit: "fill" });
    for (const [name, [format, options]] of Object.entries(asked.formats)) {
      const file = `${asked.folder}/${made.length}`;
      // A JPEG shows what is behind a transparent picture: on white, as ours, where sharp takes black.
      const shown = format === "jpeg" ? resized.clone().flatten({ background: "#ffffff" }) : resized.clone();
      const { size } = await shown[format](options).toFile(file);
      made.push({ picture, width, name, file, size });
    }
  }
}
console.log(JSON.stringify(made));
