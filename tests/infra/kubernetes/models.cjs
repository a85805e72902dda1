// node models.cjs FOLDER: reads a JSON list of custom resources, and prints a JSON list of what their models refuse.
const { createRequire } = require("node:module");
const installed = createRequire(`${process.argv[2]}/`);
const packages = {
  "keda.sh": "@kubernetes-models/keda",
  "monitoring.coreos.com": "@kubernetes-models/prometheus-operator",
};

const refused = [];
for (const resource of JSON.parse(require("node:fs").readFileSync(0, "utf8"))) {
  const said = (why) => refused.push(`${resource.kind} ${resource.metadata.name}: ${why}`);
  const [group] = resource.apiVersion.split("/");
  try {
    const model = installed(`${packages[group]}/${resource.apiVersion}/${resource.kind}`)[resource.kind];
    new model(resource).validate();
  } catch (error) {
    said(error.message);
  }
}
console.log(JSON.stringify(refused));
