terraform {
  required_version = ">= 1.9" # a condition of a variable may name another one

  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = "~> 5.100"
    }
  }
}
