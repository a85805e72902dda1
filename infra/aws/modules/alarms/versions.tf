terraform {
  required_version = ">= 1.9"

  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = "~> 5.100"
      # CloudFront tells its metrics in us-east-1 alone, and an alarm is where its metric is.
      configuration_aliases = [aws.us_east_1]
    }
  }
}
