output "endpoint_ids" {
  description = "The endpoints that were made, by service."
  value = merge(
    { for endpoint in aws_vpc_endpoint.sqs : "sqs" => endpoint.id },
    { for endpoint in aws_vpc_endpoint.s3 : "s3" => endpoint.id },
  )
}

output "launch_template" {
  description = "For the nodes' groups: IMDSv2 with one hop, which no pod gets beyond."
  value = {
    id      = aws_launch_template.nodes.id
    version = aws_launch_template.nodes.latest_version
  }
}
