# What rights.json becomes. The project's tests read the same table by themselves; both have to come
# to the policies of the golden file, whose ARNs are given here.

mock_provider "aws" {
  mock_resource "aws_iam_role" {
    defaults = { arn = "arn:aws:iam::111122223333:role/mocked" }
  }
}

variables {
  name_prefix           = "imagefleet"
  queue_arns            = { for lane in ["fast", "general", "quarantine"] : lane => "arn:aws:sqs:eu-central-1:111122223333:imagefleet-${lane}" }
  dead_letter_queue_arn = "arn:aws:sqs:eu-central-1:111122223333:imagefleet-dead-letter"
  bucket_arns           = { for bucket in ["originals", "outputs"] : bucket => "arn:aws:s3:::imagefleet-${bucket}" }
  distribution_arn      = "arn:aws:cloudfront::111122223333:distribution/EDFDVBD6EXAMPLE"
  kms_key_arn           = "arn:aws:kms:eu-central-1:111122223333:key/0d990263-018e-4e65-a703-eff731de951e"
  cluster = {
    arn               = "arn:aws:eks:eu-central-1:111122223333:cluster/fleet"
    oidc_provider_arn = "arn:aws:iam::111122223333:oidc-provider/oidc.eks.eu-central-1.amazonaws.com/id/EXAMPLE"
  }
}

run "a_role_a_process" {
  assert {
    condition     = toset(keys(output.role_arns)) == toset(["api", "worker", "maintenance", "migrations", "keda"])
    error_message = "There is one role for each process, and no other."
  }

  assert {
    condition     = aws_iam_role.this["worker"].name == "imagefleet-worker"
    error_message = "A role is named after its process."
  }

  assert {
    condition = jsonencode({ for process, policy in output.policies : process => jsondecode(policy) }) == jsonencode(
      jsondecode(file("${path.module}/../../../../tests/project/golden/policies.json")).policies
    )
    error_message = "The policies are not those that the project's tests make of rights.json."
  }
}

run "without_a_key_and_an_edge" {
  variables {
    kms_key_arn      = null
    distribution_arn = null
  }

  assert {
    condition     = length(regexall("kms|cloudfront", jsonencode(output.policies))) == 0
    error_message = "Nobody has rights on what is not there."
  }

  assert {
    condition = alltrue(flatten([
      for policy in output.policies : [for statement in jsondecode(policy).Statement : length(statement.Resource) > 0]
    ]))
    error_message = "A statement without a resource is refused by IAM."
  }
}

run "one_service_account_each" {
  assert {
    condition = alltrue([
      for process, trust in output.trust : jsondecode(trust).Statement[0].Condition.StringEquals == {
        "oidc.eks.eu-central-1.amazonaws.com/id/EXAMPLE:aud" = "sts.amazonaws.com"
        "oidc.eks.eu-central-1.amazonaws.com/id/EXAMPLE:sub" = (
          process == "keda" ? "system:serviceaccount:keda:keda-operator" : "system:serviceaccount:imagefleet:imagefleet-${process}"
        )
      }
    ])
    error_message = "A role is taken by one service account of one namespace."
  }

  assert {
    condition     = length(aws_eks_pod_identity_association.this) == 0
    error_message = "IRSA needs no association."
  }

  assert {
    condition     = output.service_accounts["api"].annotations["eks.amazonaws.com/role-arn"] == output.role_arns["api"]
    error_message = "IRSA reads the role from the service account."
  }
}

run "by_pod_identity" {
  variables {
    cluster          = { arn = "arn:aws:eks:eu-central-1:111122223333:cluster/fleet" }
    service_accounts = { keda = { namespace = "scaling", name = "operator" } }
  }

  assert {
    condition = jsondecode(output.trust["keda"]).Statement[0] == {
      Sid       = "ItsServiceAccount"
      Effect    = "Allow"
      Principal = { Service = "pods.eks.amazonaws.com" }
      Action    = ["sts:AssumeRole", "sts:TagSession"]
      Condition = {
        StringEquals = {
          "aws:RequestTag/eks-cluster-arn"            = "arn:aws:eks:eu-central-1:111122223333:cluster/fleet"
          "aws:RequestTag/kubernetes-namespace"       = "scaling"
          "aws:RequestTag/kubernetes-service-account" = "operator"
        }
      }
    }
    error_message = "The tags of the session say which service account of which cluster asks."
  }

  assert {
    condition     = toset([for each in aws_eks_pod_identity_association.this : "${each.cluster_name} ${each.namespace} ${each.service_account}"]) == toset(["fleet imagefleet imagefleet-api", "fleet imagefleet imagefleet-worker", "fleet imagefleet imagefleet-maintenance", "fleet imagefleet imagefleet-migrations", "fleet scaling operator"])
    error_message = "Each role is associated with its service account."
  }

  assert {
    condition     = length(output.service_accounts["api"].annotations) == 0
    error_message = "Pod Identity reads no annotation."
  }
}

run "dead_letters_are_no_lane" {
  command = plan

  variables {
    queue_arns = { "dead-letter" = "arn:aws:sqs:eu-central-1:111122223333:imagefleet-dead-letter" }
  }

  expect_failures = [var.queue_arns]
}

run "a_cluster_that_is_none" {
  command = plan

  variables {
    cluster = { arn = "fleet" }
  }

  expect_failures = [var.cluster]
}
