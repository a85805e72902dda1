locals {
  served   = "outputs" # names of the two origins inside the distribution, as the bootstrap has them
  pointers = "api"

  year_seconds = 31536000
  # CloudFront's own, written down: so long a missing object stays missing. A 404 that says no-store is not kept all the
  # same, a 5xx is whatever it says (docs/edge.md).
  error_seconds = 10
  errors_kept   = [404, 500, 502, 503, 504]
}

resource "aws_cloudfront_origin_access_control" "served" {
  name                              = var.name_prefix
  description                       = "Reads the outputs of ${var.name_prefix}"
  origin_access_control_origin_type = "s3"
  signing_behavior                  = "always"
  signing_protocol                  = "sigv4"
}

# One for both origins. An address is all that either knows: no query, no cookie, no header is part of the key or is passed
# on, Host least of all. How long is what the answer says: objects a year, redirects their s-maxage, others nothing.
resource "aws_cloudfront_cache_policy" "address" {
  name        = "${var.name_prefix}-address"
  comment     = "The address alone, for as long as the origin says"
  min_ttl     = 0 # no-store of a stable address that is not published yet has to hold
  default_ttl = 0
  max_ttl     = local.year_seconds

  parameters_in_cache_key_and_forwarded_to_origin {
    enable_accept_encoding_brotli = false
    enable_accept_encoding_gzip   = false

    cookies_config {
      cookie_behavior = "none"
    }

    headers_config {
      header_behavior = "none"
    }

    query_strings_config {
      query_string_behavior = "none"
    }
  }
}

resource "aws_cloudfront_distribution" "edge" {
  #checkov:skip=CKV_AWS_310: Neither origin has a second one: objects are in one bucket, and what is current is one row.
  #checkov:skip=CKV_AWS_374: Images are for the whole world; where they are not is for the owner to say.
  #checkov:skip=CKV_AWS_174: Without a name of yours CloudFront has a certificate of its own, whose TLS cannot be chosen; with one it is 1.2 at least.
  #checkov:skip=CKV2_AWS_42: The same: a certificate comes with domain_names.
  #checkov:skip=CKV_AWS_68: A web ACL is named by web_acl_arn; nothing behind this takes a body, a query or a cookie.
  #checkov:skip=CKV2_AWS_47: The same; and no Java is behind it.
  #checkov:skip=CKV2_AWS_32: Both behaviours have one of AWS's own, which is named by its id in the topology; the tests hold it.
  #checkov:skip=CKV_AWS_86: Access logs are named by access_log_domain; they tell who looked at which picture.
  comment             = var.name_prefix
  enabled             = true
  is_ipv6_enabled     = true
  http_version        = "http2and3"
  price_class         = var.price_class
  aliases             = var.domain_names
  web_acl_id          = var.web_acl_arn
  wait_for_deployment = true
  # Who asks for `/` would else be given a listing of the bucket, which the edge may list.
  default_root_object = "nothing"

  origin {
    origin_id                = local.served
    domain_name              = var.served_domain
    origin_access_control_id = aws_cloudfront_origin_access_control.served.id
  }

  origin {
    origin_id   = local.pointers
    domain_name = var.api_domain

    custom_origin_config {
      http_port                = 80
      https_port               = 443
      origin_protocol_policy   = "https-only"
      origin_ssl_protocols     = ["TLSv1.2"]
      origin_read_timeout      = 10 # the API answers within two seconds, or says 503
      origin_keepalive_timeout = 5
    }
  }

  default_cache_behavior {
    target_origin_id           = local.served
    viewer_protocol_policy     = "redirect-to-https"
    allowed_methods            = ["GET", "HEAD"]
    cached_methods             = ["GET", "HEAD"]
    cache_policy_id            = aws_cloudfront_cache_policy.address.id
    response_headers_policy_id = var.headers_policy_id
    compress                   = false # images are compressed already
  }

  ordered_cache_behavior {
    path_pattern               = var.pointers_path
    target_origin_id           = local.pointers
    viewer_protocol_policy     = "redirect-to-https"
    allowed_methods            = ["GET", "HEAD"]
    cached_methods             = ["GET", "HEAD"]
    cache_policy_id            = aws_cloudfront_cache_policy.address.id
    response_headers_policy_id = var.headers_policy_id
    compress                   = false
  }

  dynamic "custom_error_response" {
    for_each = local.errors_kept

    content {
      error_code            = custom_error_response.value
      error_caching_min_ttl = local.error_seconds
    }
  }

  dynamic "logging_config" {
    for_each = var.access_log_domain[*]

    content {
      bucket          = logging_config.value
      prefix          = "${var.name_prefix}/"
      include_cookies = false
    }
  }

  restrictions {
    geo_restriction {
      restriction_type = "none"
    }
  }

  viewer_certificate {
    cloudfront_default_certificate = var.certificate_arn == null
    acm_certificate_arn            = var.certificate_arn
    ssl_support_method             = var.certificate_arn == null ? null : "sni-only"
    minimum_protocol_version       = var.certificate_arn == null ? "TLSv1" : "TLSv1.2_2021"
  }
}
