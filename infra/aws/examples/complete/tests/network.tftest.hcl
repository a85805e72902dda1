mock_provider "aws" {
  source = "./tests/mocks"
}

variables {
  name_prefix     = "fleet"
  vpc_id          = "vpc-1"
  subnet_ids      = ["subnet-1", "subnet-2"]
  route_table_ids = ["rtb-1"]
  clients         = { nodes = "sg-1" }
}

run "queues_and_buckets_are_reached_without_the_internet" {
  module {
    source = "../../modules/network"
  }

  assert {
    condition = (
      aws_vpc_endpoint.sqs[0].service_name == "com.amazonaws.eu-central-1.sqs" &&
      aws_vpc_endpoint.sqs[0].vpc_endpoint_type == "Interface" &&
      aws_vpc_endpoint.sqs[0].private_dns_enabled
    )
    error_message = "SQS has no address in the VPC."
  }

  assert {
    condition = (
      toset(aws_vpc_endpoint.sqs[0].subnet_ids) == toset(var.subnet_ids) &&
      aws_vpc_endpoint.sqs[0].security_group_ids == toset([aws_security_group.endpoints.id])
    )
    error_message = "The endpoint of SQS is not in every subnet, or not behind its group."
  }

  assert {
    condition = (
      aws_vpc_endpoint.s3[0].service_name == "com.amazonaws.eu-central-1.s3" &&
      aws_vpc_endpoint.s3[0].vpc_endpoint_type == "Gateway" &&
      toset(aws_vpc_endpoint.s3[0].route_table_ids) == toset(["rtb-1"])
    )
    error_message = "No route leads to S3."
  }

  assert {
    condition = alltrue([
      for rule in aws_vpc_security_group_ingress_rule.endpoints :
      rule.referenced_security_group_id == "sg-1" && rule.from_port == 443 && rule.to_port == 443
    ])
    error_message = "Others than the clients reach the endpoint, or on another port."
  }

  assert {
    condition = alltrue(flatten([
      for endpoint in concat(aws_vpc_endpoint.sqs, aws_vpc_endpoint.s3) : [
        for statement in jsondecode(endpoint.policy).Statement :
        try(statement.Condition.StringEquals["aws:PrincipalAccount"], "") == "111122223333" &&
        try(statement.Condition.StringEquals["aws:ResourceAccount"], "") == "111122223333"
        if statement.Sid != "Layers"
      ]
    ]))
    error_message = "Another account's keys or buckets can be used through an endpoint."
  }

  assert {
    condition = [
      for statement in jsondecode(aws_vpc_endpoint.s3[0].policy).Statement : [statement.Action, statement.Resource] if statement.Sid == "Layers"
    ] == [["s3:GetObject", ["arn:aws:s3:::prod-eu-central-1-starport-layer-bucket/*"]]]
    error_message = "Nodes cannot pull images, or may do more."
  }
}

run "no_pod_reaches_the_metadata_service" {
  module {
    source = "../../modules/network"
  }

  variables {
    set_account_metadata_defaults = true
  }

  assert {
    condition = (
      one(aws_launch_template.nodes.metadata_options).http_tokens == "required" &&
      one(aws_launch_template.nodes.metadata_options).http_put_response_hop_limit == 1
    )
    error_message = "A pod reaches the metadata service of its node."
  }

  assert {
    condition = (
      aws_ec2_instance_metadata_defaults.account[0].http_tokens == "required" &&
      aws_ec2_instance_metadata_defaults.account[0].http_put_response_hop_limit == 1
    )
    error_message = "A pod on any other node of the account reaches it."
  }
}

run "what_a_vpc_has_already_is_left_out" {
  module {
    source = "../../modules/network"
  }

  variables {
    endpoints = ["sqs"]
  }

  assert {
    condition     = length(aws_vpc_endpoint.s3) == 0 && keys(output.endpoint_ids) == ["sqs"]
    error_message = "A second endpoint for S3 is made."
  }
}

run "any_bucket_of_others_is_not_readable" {
  command = plan

  module {
    source = "../../modules/network"
  }

  variables {
    other_readable_arns = ["arn:aws:s3:::*/*"]
  }

  expect_failures = [var.other_readable_arns]
}
