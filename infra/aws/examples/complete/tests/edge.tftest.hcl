mock_provider "aws" {
  source = "./tests/mocks"
}

run "topology" {
  module {
    source = "../../modules/topology"
  }
}

run "the_edge_has_both_origins_and_asks_them_for_an_address_alone" {
  module {
    source = "../../modules/edge"
  }

  variables {
    name_prefix       = "fleet"
    served_domain     = "a-bucket.s3.eu-central-1.amazonaws.com"
    api_domain        = "api.example.com"
    pointers_path     = run.topology.edge.pointers_path
    headers_policy_id = run.topology.edge.headers_policy_id
  }

  assert {
    condition     = { for origin in aws_cloudfront_distribution.edge.origin : origin.origin_id => origin.domain_name } == { outputs = var.served_domain, api = "api.example.com" }
    error_message = "The origins are the bucket and the API."
  }

  assert {
    condition = [
      for origin in aws_cloudfront_distribution.edge.origin : origin.origin_access_control_id if origin.origin_id == "outputs"
    ] == [aws_cloudfront_origin_access_control.served.id] && aws_cloudfront_origin_access_control.served.signing_behavior == "always"
    error_message = "The bucket is asked without a signature, and would refuse."
  }

  assert {
    condition = [
      for origin in aws_cloudfront_distribution.edge.origin : one(origin.custom_origin_config).origin_protocol_policy if origin.origin_id == "api"
    ] == ["https-only"]
    error_message = "The API is asked without TLS."
  }

  assert {
    condition = [
      for origin in aws_cloudfront_distribution.edge.origin : [tolist(one(origin.custom_origin_config).origin_ssl_protocols), one(origin.custom_origin_config).origin_read_timeout]
      if origin.origin_id == "api"
    ] == [[tolist(["TLSv1.2"]), 10]]
    error_message = "The API is asked over old TLS, or waited for longer than it takes."
  }

  assert {
    condition = alltrue([
      for behaviour in concat(aws_cloudfront_distribution.edge.default_cache_behavior, aws_cloudfront_distribution.edge.ordered_cache_behavior) :
      !behaviour.compress && toset(behaviour.cached_methods) == toset(["GET", "HEAD"])
    ])
    error_message = "Images are compressed again."
  }

  assert {
    condition = (
      one(aws_cloudfront_distribution.edge.default_cache_behavior).target_origin_id == "outputs" &&
      one(aws_cloudfront_distribution.edge.ordered_cache_behavior).target_origin_id == "api" &&
      one(aws_cloudfront_distribution.edge.ordered_cache_behavior).path_pattern == run.topology.edge.pointers_path
    )
    error_message = "Stable addresses are the API's, all others the bucket's."
  }

  assert {
    condition = alltrue([
      for behaviour in concat(aws_cloudfront_distribution.edge.default_cache_behavior, aws_cloudfront_distribution.edge.ordered_cache_behavior) : (
        behaviour.viewer_protocol_policy == "redirect-to-https" &&
        toset(behaviour.allowed_methods) == toset(["GET", "HEAD"]) &&
        behaviour.cache_policy_id == aws_cloudfront_cache_policy.address.id &&
        behaviour.response_headers_policy_id == run.topology.edge.headers_policy_id &&
        behaviour.origin_request_policy_id == null
      )
    ])
    error_message = "A behaviour lets in, keeps or says something else."
  }

  assert {
    condition = alltrue([
      for key in aws_cloudfront_cache_policy.address.parameters_in_cache_key_and_forwarded_to_origin : (
        one(key.cookies_config).cookie_behavior == "none" &&
        one(key.headers_config).header_behavior == "none" &&
        one(key.query_strings_config).query_string_behavior == "none" &&
        !key.enable_accept_encoding_gzip && !key.enable_accept_encoding_brotli
      )
    ])
    error_message = "Something beside the address is part of the key."
  }

  assert {
    condition = (
      aws_cloudfront_cache_policy.address.min_ttl == 0 &&
      aws_cloudfront_cache_policy.address.default_ttl == 0 &&
      aws_cloudfront_cache_policy.address.max_ttl == 31536000
    )
    error_message = "An answer is kept for longer or shorter than it says."
  }

  assert {
    condition = { for kept in aws_cloudfront_distribution.edge.custom_error_response : kept.error_code => kept.error_caching_min_ttl } == {
      404 = 10, 500 = 10, 502 = 10, 503 = 10, 504 = 10
    }
    error_message = "Errors are not kept for ten seconds."
  }

  assert {
    condition     = aws_cloudfront_distribution.edge.default_root_object == "nothing"
    error_message = "`/` is a listing of the bucket."
  }

  assert {
    condition     = output.public_base_url == "https://d111111abcdef8.cloudfront.net"
    error_message = "Addresses do not begin with CloudFront's own name."
  }
}

run "names_of_ones_own_have_a_certificate_and_tls_1_2" {
  module {
    source = "../../modules/edge"
  }

  variables {
    name_prefix       = "fleet"
    served_domain     = "a-bucket.s3.eu-central-1.amazonaws.com"
    api_domain        = "api.example.com"
    pointers_path     = run.topology.edge.pointers_path
    headers_policy_id = run.topology.edge.headers_policy_id
    domain_names      = ["images.example.com", "img.example.com"]
    certificate_arn   = "arn:aws:acm:us-east-1:111122223333:certificate/c"
    web_acl_arn       = "arn:aws:wafv2:us-east-1:111122223333:global/webacl/a/b"
    access_log_domain = "logs.s3.amazonaws.com"
  }

  assert {
    condition = (
      toset(aws_cloudfront_distribution.edge.aliases) == toset(var.domain_names) &&
      one(aws_cloudfront_distribution.edge.viewer_certificate).acm_certificate_arn == var.certificate_arn &&
      one(aws_cloudfront_distribution.edge.viewer_certificate).ssl_support_method == "sni-only"
    )
    error_message = "The names are not the distribution's, or have no certificate."
  }

  assert {
    condition = (
      aws_cloudfront_distribution.edge.web_acl_id == var.web_acl_arn &&
      one(aws_cloudfront_distribution.edge.logging_config).bucket == var.access_log_domain &&
      !one(aws_cloudfront_distribution.edge.logging_config).include_cookies
    )
    error_message = "The web ACL, or the access log, is not what was named."
  }

  assert {
    condition     = output.public_base_url == "https://images.example.com"
    error_message = "Addresses do not begin with the first name."
  }

  assert {
    condition     = one(aws_cloudfront_distribution.edge.viewer_certificate).minimum_protocol_version == "TLSv1.2_2021"
    error_message = "Old TLS is taken."
  }
}

run "names_without_a_certificate_are_refused" {
  command = plan

  module {
    source = "../../modules/edge"
  }

  variables {
    name_prefix       = "fleet"
    served_domain     = "a-bucket.s3.eu-central-1.amazonaws.com"
    api_domain        = "api.example.com"
    pointers_path     = run.topology.edge.pointers_path
    headers_policy_id = run.topology.edge.headers_policy_id
    domain_names      = ["images.example.com"]
  }

  expect_failures = [var.certificate_arn]
}
