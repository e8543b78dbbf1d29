{{- define "penstock.name" -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "penstock.selector" -}}
app.kubernetes.io/name: penstock
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "penstock.labels" -}}
{{ include "penstock.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{/* The image of a part: list of the root context and the part's name. */}}
{{- define "penstock.image" -}}
{{- $root := index . 0 -}}
{{ $root.Values.image.repository }}/{{ index . 1 }}:{{ $root.Values.image.tag | default $root.Chart.AppVersion }}
{{- end -}}

{{- define "penstock.secretName" -}}
{{ .Values.secrets.existing | default (printf "%s-settings" (include "penstock.name" .)) }}
{{- end -}}

{{- define "penstock.brokers" -}}
{{- if .Values.bundled.kafka.enabled -}}
{{ include "penstock.name" . }}-kafka:9092
{{- else -}}
{{ required "kafka.brokers is missing: name your brokers, or set bundled.kafka.enabled=true for trying out" .Values.kafka.brokers }}
{{- end -}}
{{- end -}}

{{- define "penstock.storeEndpoint" -}}
{{- if .Values.bundled.minio.enabled -}}
http://{{ include "penstock.name" . }}-minio:9000
{{- else -}}
{{ required "store.endpoint is missing: name your S3 store, or set bundled.minio.enabled=true for trying out" .Values.store.endpoint }}
{{- end -}}
{{- end -}}

{{- define "penstock.redisUrl" -}}
{{- if .Values.bundled.redis.enabled -}}
redis://{{ include "penstock.name" . }}-redis:6379/0
{{- else -}}
{{ required "secrets.redisUrl is missing: name your Redis, use secrets.existing, or set bundled.redis.enabled=true for trying out" .Values.secrets.redisUrl }}
{{- end -}}
{{- end -}}

{{/* Settings of every container that speaks to the cluster. */}}
{{- define "penstock.env" -}}
- {name: PENSTOCK_NAME, value: {{ .Values.clusterName | quote }}}
- {name: PENSTOCK_REST, value: "http://{{ include "penstock.name" . }}-rest:{{ .Values.dispatcher.service.port }}"}
- {name: PENSTOCK_KAFKA_BROKERS, value: {{ include "penstock.brokers" . | quote }}}
- {name: PENSTOCK_KAFKA_SECURITY_PROTOCOL, value: {{ .Values.kafka.securityProtocol | quote }}}
- {name: PENSTOCK_KAFKA_SASL_MECHANISM, value: {{ .Values.kafka.saslMechanism | quote }}}
- {name: PENSTOCK_KAFKA_REPLICATION, value: {{ .Values.kafka.replication | quote }}}
- {name: PENSTOCK_STORE_ENDPOINT, value: {{ include "penstock.storeEndpoint" . | quote }}}
- {name: PENSTOCK_STORE_BUCKET, value: {{ .Values.store.bucket | quote }}}
- {name: PENSTOCK_STORE_REGION, value: {{ .Values.store.region | quote }}}
{{- end -}}

{{- define "penstock.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "penstock.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* The checks of a service, by port. Ready is who can work; a coordinator that waits for the lease can. */}}
{{- define "penstock.probes" -}}
startupProbe:
  httpGet: {path: /healthz, port: http}
  periodSeconds: 2
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /healthz, port: http}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: http}
  periodSeconds: 5
  timeoutSeconds: 5
{{- end -}}

{{- define "penstock.placing" -}}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* A service's pods: dict of root, part, port, values, arguments (a list), grace. */}}
{{- define "penstock.podTemplate" -}}
{{- $root := .root -}}
metadata:
  labels:
    {{- include "penstock.labels" $root | nindent 4 }}
    app.kubernetes.io/component: {{ .part }}
  annotations:
    checksum/settings: {{ include (print $root.Template.BasePath "/secret.yaml") $root | sha256sum }}
spec:
  serviceAccountName: {{ include "penstock.name" $root }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  securityContext: {{- include "penstock.podSecurity" $root | nindent 4 }}
  terminationGracePeriodSeconds: {{ .grace }}
  {{- with $root.Values.image.pullSecrets }}
  imagePullSecrets: {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: {{ .part }}
      image: {{ include "penstock.image" (list $root .part) }}
      imagePullPolicy: {{ $root.Values.image.pullPolicy }}
      args: {{- toYaml .arguments | nindent 8 }}
      ports:
        - {name: http, containerPort: {{ .port }}}
      env: {{- include "penstock.env" $root | nindent 8 }}
      envFrom:
        - secretRef: {name: {{ include "penstock.secretName" $root }}}
      securityContext: {{- include "penstock.containerSecurity" $root | nindent 8 }}
      {{- include "penstock.probes" $root | nindent 6 }}
      resources: {{- toYaml .values.resources | nindent 8 }}
      volumeMounts:
        - {name: tmp, mountPath: /tmp}
  volumes:
    - name: tmp
      emptyDir: {{- toYaml .tmp | nindent 8 }}
  {{- include "penstock.placing" .values | nindent 2 }}
{{- end -}}
