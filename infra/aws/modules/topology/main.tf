# What exists in AWS beside the processes, as the processes of this release know it: the bootstrap of emulators reads the
# same file. Whoever takes the modules from a revision of the repository takes this description with them.

locals {
  described = jsondecode(file("${path.module}/../../../../services/imagefleet/embedded/topology.json"))
}
