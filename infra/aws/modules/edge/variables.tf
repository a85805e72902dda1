variable "name_prefix" {
  description = "Names the distribution (as its comment), its access control and its cache policy."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,29}[a-z0-9]$", var.name_prefix))
    error_message = "name_prefix is 3 to 31 lower case letters, digits and hyphens, and begins with a letter."
  }
}

variable "served_domain" {
  description = "The regional domain of the bucket of outputs."
  type        = string
}

variable "api_domain" {
  description = "The host of the API, which answers stable addresses over HTTPS with a certificate for that name."
  type        = string

  validation {
    condition     = can(regex("^([a-z0-9]([a-z0-9-]*[a-z0-9])?\\.)+[a-z]{2,}$", var.api_domain))
    error_message = "api_domain is the name of a host, such as api.example.com: no scheme, no port, no path."
  }
}

variable "pointers_path" {
  description = "The addresses that the API answers, as the topology has them; everything else is in the bucket."
  type        = string

  validation {
    condition     = startswith(var.pointers_path, "/")
    error_message = "pointers_path begins with a slash."
  }
}

variable "headers_policy_id" {
  description = "The response headers policy of both behaviours, as the topology has it: nosniff, and pixels for pages of any origin."
  type        = string
}

variable "domain_names" {
  description = "Names that images are published under; the first is the one in their addresses. None is CloudFront's own name."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for name in var.domain_names : can(regex("^([a-z0-9]([a-z0-9-]*[a-z0-9])?\\.)+[a-z]{2,}$", name))])
    error_message = "domain_names are names of hosts, such as images.example.com."
  }
}

variable "certificate_arn" {
  description = "A certificate of ACM in us-east-1 for domain_names."
  type        = string
  default     = null

  validation {
    condition     = (var.certificate_arn == null) == (length(var.domain_names) == 0)
    error_message = "domain_names and certificate_arn go together."
  }

  validation {
    condition     = var.certificate_arn == null || can(regex("^arn:[a-z-]+:acm:us-east-1:", var.certificate_arn))
    error_message = "CloudFront takes certificates of us-east-1 alone."
  }
}

variable "price_class" {
  description = "How much of the world serves images: PriceClass_100, PriceClass_200 or PriceClass_All."
  type        = string
  default     = "PriceClass_All"

  validation {
    condition     = contains(["PriceClass_100", "PriceClass_200", "PriceClass_All"], var.price_class)
    error_message = "price_class is PriceClass_100, PriceClass_200 or PriceClass_All."
  }
}

variable "web_acl_arn" {
  description = "A web ACL of AWS WAF (of CLOUDFRONT's scope) before everything; null is none."
  type        = string
  default     = null
}

variable "access_log_domain" {
  description = "The domain of a bucket for standard access logs, which has to allow ACLs; null writes none."
  type        = string
  default     = null
}
