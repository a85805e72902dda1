locals {
  # By the same rule as the bootstrap of emulators: the key of a queue or bucket names its variable.
  shared = merge(
    { for key, url in module.queues.urls : "${upper(replace(key, "-", "_"))}_QUEUE_URL" => url },
    { for key, name in module.storage.names : "${upper(replace(key, "-", "_"))}_BUCKET" => name },
    {
      AWS_REGION                 = var.region
      CLOUDFRONT_DISTRIBUTION_ID = module.edge.distribution_id
      # This provider cannot give a distribution a cache tag (README.md).
      CLOUDFRONT_CACHE_TAGS = "false"
    },
  )
}

output "environment" {
  description = "The variables of each process (docs/settings.md), but for the secrets: DATABASE_URL of each, OPERATOR_DATABASE_URL of the API."
  value = {
    api         = merge(local.shared, { PUBLIC_BASE_URL = module.edge.public_base_url })
    worker      = local.shared
    maintenance = local.shared
  }
}

output "service_accounts" {
  description = "Whose service account takes which role: namespace, name, and the annotations that IRSA reads."
  value       = module.identity.service_accounts
}

output "database" {
  description = "Where Postgres is, and the secret of its administrator, which `imagefleet migrate --roles` is given."
  value = {
    host                     = module.database.host
    port                     = module.database.port
    administrator_secret_arn = module.database.administrator_secret_arn
  }
}

output "edge_domain" {
  description = "CloudFront's own name, which domain_names are to be an alias of in DNS."
  value       = module.edge.domain_name
}

output "launch_template" {
  description = "For the groups of nodes: pods on them do not reach the metadata service."
  value       = module.network.launch_template
}
