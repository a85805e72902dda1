# One role a process. What each may do stands in rights.json, with the calls that need it and why;
# the tests of the project compare it with what its processes were heard to call.

locals {
  rights = jsondecode(file("${path.module}/rights.json")).rights

  # What the places of the table are here; the table knows nothing of accounts.
  arns = merge({ for name, arn in var.bucket_arns : name => [arn] }, {
    lanes         = values(var.queue_arns)
    "dead-letter" = [var.dead_letter_queue_arn]
    distribution  = [for arn in [var.distribution_arn] : arn if arn != null]
    key           = [for arn in [var.kms_key_arn] : arn if arn != null]
  })

  # `originals/o/*` is the ARN of the bucket and the rest; a place that is not there has none.
  reached = {
    for place in distinct(flatten([for rights in local.rights : [for right in rights : right.on]])) :
    place => [for arn in local.arns[split("/", place)[0]] : "${arn}${trimprefix(place, split("/", place)[0])}"]
  }

  region = split(":", var.dead_letter_queue_arn)[3]

  # A role's other policies cannot undo this. It denies, where a condition of what is allowed would
  # do the same, since S3 and SQS ask KMS on a role's behalf, and those requests do not say how they came.
  over_tls = {
    Sid       = "OnlyOverTls"
    Effect    = "Deny"
    Action    = "*"
    Resource  = "*"
    Condition = { Bool = { "aws:SecureTransport" = "false" } }
  }

  policies = {
    for process, rights in local.rights : process => jsonencode({
      Version = "2012-10-17"
      Statement = concat([local.over_tls], [
        for right in rights : {
          for element, value in {
            Effect   = "Allow"
            Action   = right.action
            Resource = flatten([for place in right.on : local.reached[place]])
            Condition = try(
              { StringLike = { "s3:prefix" = right.prefixes } },
              { StringEquals = { "kms:ViaService" = [for service in right.via : "${service}.${local.region}.amazonaws.com"] } },
              null,
            )
          } : element => value if value != null
        }
        if anytrue([for place in right.on : length(local.reached[place]) > 0])
      ])
    })
  }

  accounts = merge(
    { for process in keys(local.rights) : process => { namespace = "imagefleet", name = "imagefleet-${process}" } },
    # KEDA's operator asks for all that it scales.
    { keda = { namespace = "keda", name = "keda-operator" } },
    var.service_accounts,
  )

  irsa   = var.cluster.oidc_provider_arn != null
  issuer = local.irsa ? split(":oidc-provider/", var.cluster.oidc_provider_arn)[1] : null

  # One service account each, and that one alone.
  trust = {
    for process, account in local.accounts : process => jsonencode({
      Version = "2012-10-17"
      Statement = [{
        Sid       = "ItsServiceAccount"
        Effect    = "Allow"
        Principal = { for kind, who in { Federated = var.cluster.oidc_provider_arn, Service = local.irsa ? null : "pods.eks.amazonaws.com" } : kind => who if who != null }
        Action    = local.irsa ? ["sts:AssumeRoleWithWebIdentity"] : ["sts:AssumeRole", "sts:TagSession"]
        Condition = {
          StringEquals = { for key, value in {
            "${coalesce(local.issuer, "none")}:aud"     = local.irsa ? "sts.amazonaws.com" : null
            "${coalesce(local.issuer, "none")}:sub"     = local.irsa ? "system:serviceaccount:${account.namespace}:${account.name}" : null
            "aws:RequestTag/eks-cluster-arn"            = local.irsa ? null : var.cluster.arn
            "aws:RequestTag/kubernetes-namespace"       = local.irsa ? null : account.namespace
            "aws:RequestTag/kubernetes-service-account" = local.irsa ? null : account.name
          } : key => value if value != null }
        }
      }]
    })
  }
}

resource "aws_iam_role" "this" {
  for_each = local.policies

  name                 = "${var.name_prefix}-${each.key}"
  description          = "imagefleet: ${each.key}"
  assume_role_policy   = local.trust[each.key]
  permissions_boundary = var.permissions_boundary
  tags                 = var.tags
}

resource "aws_iam_role_policy" "this" {
  for_each = local.policies

  name   = "rights"
  role   = aws_iam_role.this[each.key].name
  policy = each.value
}

resource "aws_eks_pod_identity_association" "this" {
  for_each = local.irsa ? {} : local.accounts

  cluster_name    = split("/", var.cluster.arn)[1]
  namespace       = each.value.namespace
  service_account = each.value.name
  role_arn        = aws_iam_role.this[each.key].arn
  tags            = var.tags
}
