data "aws_caller_identity" "current" {}

locals {
  tags = { Application = var.name_prefix }
}

module "topology" {
  source = "../../modules/topology"
}

module "queues" {
  source = "../../modules/queues"

  name_prefix       = var.name_prefix
  queues            = module.topology.queues
  long_poll_seconds = module.topology.long_poll_seconds
  kms_key_arn       = var.kms_key_arn
}

module "storage" {
  source = "../../modules/storage"

  name_prefix                = var.name_prefix
  name_suffix                = data.aws_caller_identity.current.account_id
  buckets                    = module.topology.buckets
  served_bucket              = module.topology.edge.served_bucket
  distribution_arn           = module.edge.distribution_arn
  abort_multipart_after_days = module.topology.abort_multipart_after_days
  kms_key_arn                = var.kms_key_arn
  force_destroy              = var.destroyable
}

module "edge" {
  source = "../../modules/edge"

  name_prefix       = var.name_prefix
  served_domain     = module.storage.served_domain
  api_domain        = var.api_domain
  pointers_path     = module.topology.edge.pointers_path
  headers_policy_id = module.topology.edge.headers_policy_id
  domain_names      = var.domain_names
  certificate_arn   = var.certificate_arn
}

module "network" {
  source = "../../modules/network"

  name_prefix     = var.name_prefix
  vpc_id          = var.vpc_id
  subnet_ids      = var.subnet_ids
  route_table_ids = var.route_table_ids
  clients         = var.clients
  endpoints       = var.endpoints
}

module "database" {
  source = "../../modules/database"

  name_prefix         = var.name_prefix
  vpc_id              = var.vpc_id
  subnet_ids          = var.subnet_ids
  clients             = var.clients
  postgres_version    = var.postgres_version
  instance_class      = var.instance_class
  kms_key_arn         = var.kms_key_arn
  deletion_protection = !var.destroyable
}

module "alarms" {
  source = "../../modules/alarms"
  providers = {
    aws           = aws
    aws.us_east_1 = aws.us_east_1
  }

  name_prefix           = var.name_prefix
  queue_names           = module.queues.names
  distribution_id       = module.edge.distribution_id
  database_identifier   = module.database.identifier
  maintenance_log_group = var.maintenance_log_group
  notify                = var.notify
  notify_us_east_1      = var.notify_us_east_1
}

module "identity" {
  source = "../../modules/identity"

  name_prefix           = var.name_prefix
  queue_arns            = module.queues.lane_arns
  dead_letter_queue_arn = module.queues.dead_letter_arn
  bucket_arns           = module.storage.arns
  distribution_arn      = module.edge.distribution_arn
  kms_key_arn           = var.kms_key_arn
  cluster               = var.cluster
  tags                  = local.tags
}
