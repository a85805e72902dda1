output "names" {
  description = "Names of all alarms of this region."
  value = sort(concat(
    [aws_cloudwatch_metric_alarm.dead_letters.alarm_name],
    [for alarm in aws_cloudwatch_metric_alarm.oldest_message : alarm.alarm_name],
    [for alarm in aws_cloudwatch_metric_alarm.invalidations_deferred : alarm.alarm_name],
    [for alarm in aws_cloudwatch_metric_alarm.database : alarm.alarm_name],
  ))
}
