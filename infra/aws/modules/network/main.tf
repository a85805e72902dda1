data "aws_caller_identity" "current" {}

data "aws_partition" "current" {}

data "aws_region" "current" {}

locals {
  account = data.aws_caller_identity.current.account_id
  region  = data.aws_region.current.name
  service = "com.amazonaws.${local.region}"

  # Who has got into a pod can neither carry data to an account of their own, nor use keys that they brought. An endpoint's
  # policy knows principals by condition alone.
  ours_alone = {
    StringEquals = {
      "aws:PrincipalAccount" = local.account
      "aws:ResourceAccount"  = local.account
    }
  }
}

resource "aws_security_group" "endpoints" {
  #checkov:skip=CKV2_AWS_5: It belongs to the endpoint of SQS, which there is unless it is left out.
  name_prefix = "${var.name_prefix}-endpoints-"
  description = "Who may speak to the endpoint of SQS"
  vpc_id      = var.vpc_id

  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_vpc_security_group_ingress_rule" "endpoints" {
  for_each = var.clients

  security_group_id            = aws_security_group.endpoints.id
  description                  = "HTTPS from ${each.key}"
  referenced_security_group_id = each.value
  ip_protocol                  = "tcp"
  from_port                    = 443
  to_port                      = 443
}

resource "aws_vpc_endpoint" "sqs" {
  count = contains(var.endpoints, "sqs") ? 1 : 0

  vpc_id              = var.vpc_id
  service_name        = "${local.service}.sqs"
  vpc_endpoint_type   = "Interface"
  private_dns_enabled = true
  subnet_ids          = var.subnet_ids
  security_group_ids  = [aws_security_group.endpoints.id]

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Sid       = "OursAlone"
      Effect    = "Allow"
      Principal = "*"
      Action    = "sqs:*"
      Resource  = "*"
      Condition = local.ours_alone
    }]
  })

  tags = { Name = "${var.name_prefix}-sqs" }
}

resource "aws_vpc_endpoint" "s3" {
  count = contains(var.endpoints, "s3") ? 1 : 0

  vpc_id            = var.vpc_id
  service_name      = "${local.service}.s3"
  vpc_endpoint_type = "Gateway"
  route_table_ids   = var.route_table_ids

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid       = "OursAlone"
        Effect    = "Allow"
        Principal = "*"
        Action    = "s3:*"
        Resource  = "*"
        Condition = local.ours_alone
      },
      {
        # ECR signs for the layers of images itself: without this no node pulls any.
        Sid       = "Layers"
        Effect    = "Allow"
        Principal = "*"
        Action    = "s3:GetObject"
        Resource = concat(
          ["arn:${data.aws_partition.current.partition}:s3:::prod-${local.region}-starport-layer-bucket/*"],
          var.other_readable_arns,
        )
      },
    ]
  })

  tags = { Name = "${var.name_prefix}-s3" }
}

# For the nodes' groups: a pod is one hop further from the metadata service than its node, so with one hop no answer of it
# reaches a pod, and none lends it the node's role. Pods on the host's network are none of ours.
resource "aws_launch_template" "nodes" {
  name                   = "${var.name_prefix}-nodes"
  description            = "Nodes whose pods do not reach the metadata service"
  update_default_version = true

  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
    instance_metadata_tags      = "disabled"
  }
}

resource "aws_ec2_instance_metadata_defaults" "account" {
  count = var.set_account_metadata_defaults ? 1 : 0

  http_endpoint               = "enabled"
  http_tokens                 = "required"
  http_put_response_hop_limit = 1
}
