output "role_arns" {
  description = "The role of each process: api, worker, maintenance, migrations, keda."
  value       = { for process, role in aws_iam_role.this : process => role.arn }
}

output "service_accounts" {
  description = "Whose service account takes which role: namespace, name, and the annotations that IRSA reads."
  value = {
    for process, account in local.accounts : process => {
      namespace   = account.namespace
      name        = account.name
      annotations = { for name in ["eks.amazonaws.com/role-arn"] : name => aws_iam_role.this[process].arn if local.irsa }
    }
  }
}

output "policies" {
  description = "What each role may do, to be read and compared."
  value       = local.policies
}

output "trust" {
  description = "Who may take each role."
  value       = local.trust
}
