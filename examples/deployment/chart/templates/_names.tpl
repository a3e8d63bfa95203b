{{- define "parley.labels" -}}
app.kubernetes.io/name: parley
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "parley.serverLabels" -}}
{{ include "parley.labels" . }}
app.kubernetes.io/component: server
{{- end -}}

{{- define "parley.redisLabels" -}}
{{ include "parley.labels" . }}
app.kubernetes.io/component: redis
{{- end -}}

{{- define "parley.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- define "parley.secret" -}}
{{ required "secret.name: the Secret with token, admin-token and redis-password (or redis-url)" .Values.secret.name }}
{{- end -}}

{{/* The hosts of Redis, separated by spaces: the same words everywhere. */}}
{{- define "parley.redisHosts" -}}
{{- $name := printf "%s-redis" .Release.Name -}}
{{- range $number := until (int .Values.redis.nodes) -}}
{{- if $number }} {{ end -}}
{{ $name }}-{{ $number }}.{{ $name }}.{{ $.Release.Namespace }}.svc
{{- end -}}
{{- end -}}

{{/* A url of docs/operations.md#redis; Kubernetes puts the password in its place. */}}
{{- define "parley.redisUrl" -}}
{{- $hosts := splitList " " (include "parley.redisHosts" .) -}}
{{- if eq .Values.redis.mode "cluster" -}}
redis+cluster://:$(REDIS_PASSWORD)@{{ join ":6379," $hosts }}:6379
{{- else -}}
redis+sentinel://:$(REDIS_PASSWORD)@{{ join ":26379," $hosts }}:26379/parley/0
{{- end -}}
{{- end -}}
