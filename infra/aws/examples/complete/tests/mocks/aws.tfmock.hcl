# What AWS would say, as far as somebody reads it.

mock_data "aws_caller_identity" {
  defaults = { account_id = "111122223333" }
}

mock_data "aws_partition" {
  defaults = { partition = "aws" }
}

mock_data "aws_region" {
  defaults = { name = "eu-central-1" }
}

mock_resource "aws_sqs_queue" {
  defaults = { arn = "arn:aws:sqs:eu-central-1:111122223333:a-queue" }
}

mock_resource "aws_s3_bucket" {
  defaults = {
    arn                         = "arn:aws:s3:::a-bucket"
    bucket_regional_domain_name = "a-bucket.s3.eu-central-1.amazonaws.com"
  }
}

mock_resource "aws_cloudfront_distribution" {
  defaults = {
    id          = "E2EXAMPLE"
    arn         = "arn:aws:cloudfront::111122223333:distribution/E2EXAMPLE"
    domain_name = "d111111abcdef8.cloudfront.net"
  }
}

mock_resource "aws_db_instance" {
  defaults = { address = "a-database.rds.amazonaws.com", port = 5432 }
}

mock_resource "aws_iam_role" {
  defaults = { arn = "arn:aws:iam::111122223333:role/a-role" }
}
