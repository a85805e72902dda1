"""Workers by how much there is to do: what the manifests make of KEDA, played on this machine.

`manifests` reads the ScaledObjects that kustomize renders, `autoscaler` does with them what KEDA
and the HorizontalPodAutoscaler that it makes do, `course` says what a good course of workers is. A
burst is put through that twice: `model` has workers of numbers, in no time, for the default suite;
`playing` has real ones, for `make scale-test`.
"""
